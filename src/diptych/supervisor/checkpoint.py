"""The embedded default model: drawn once into the data folder, by a process of its own."""

import asyncio
import hashlib
import os
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from diptych.core.errors import Broken
from diptych.supervisor.child import describe_exit, dies_with

DRAW = "import sys; from diptych.model import noise; noise.write(sys.argv[1], seed=0)"


def embedded_folder(data_dir: Path) -> Path:
    """Where it lies. The name follows from the script and its assets: a new one is drawn anew."""
    package = resources.files("diptych")
    state = hashlib.blake2b(digest_size=4)
    state.update((package / "model" / "noise.py").read_bytes())
    assets = package / "assets" / "noise"
    for asset in sorted(assets.iterdir(), key=lambda entry: entry.name):
        state.update(asset.read_bytes())
    return data_dir / "checkpoints" / f"noise-{state.hexdigest()}"


async def draw(folder: Path, environment: Mapping[str, str]) -> None:
    """Make the folder; Broken with the last words of the script if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRAW, str(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=dies_with(os.getpid()),
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        words = output.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise Broken(
            f"drawing the embedded model {describe_exit(process.returncode or 0)}: {words[0]}"
        )
