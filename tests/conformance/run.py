"""Run other people's clients against a platform, each in a virtual environment of its own."""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from diptych.testing.platform import MODEL, platform

HERE = Path(__file__).parent
VENVS = HERE.parents[1] / ".venv-conformance"
LIMIT_S = 900


@dataclass(frozen=True)
class Client:
    """A script, and what its environment needs."""

    script: str
    packages: tuple[str, ...]


CLIENTS = {
    "litellm": Client("litellm_client.py", ("litellm==1.110.2",)),
    "langchain": Client("langchain_client.py", ("langchain-openai==1.7.4",)),
    "instructor": Client("instructor_client.py", ("instructor==1.17.0",)),
    "schemathesis": Client("fuzz.py", ("schemathesis==4.32.5",)),
}


def environment_of(name: str, client: Client) -> Path:
    """Its Python; made on the first run, again when its packages change."""
    folder = VENVS / name
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    wanted = "\n".join(client.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *client.packages], check=True)
        stamp.write_text(wanted)
    return python


@contextlib.contextmanager
def served(url: str) -> Iterator[str]:
    """A platform that runs already, or one of our own."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder, platform(Path(folder)) as running:
        yield running.base_url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--url", default="", help="a platform that runs already")
    parser.add_argument("--model", default=MODEL)
    options = parser.parse_args()
    console, table = Console(), Table("client", "result", "seconds")
    num_failed = 0
    with served(options.url) as url:
        for name in options.only:
            client = CLIENTS[name]
            with console.status(f"{name}: environment"):
                python = environment_of(name, client)
            console.rule(name)
            began_s = time.monotonic()
            done = subprocess.run(
                [python, HERE / client.script],
                env={
                    **os.environ,
                    "DIPTYCH_URL": url,
                    "DIPTYCH_MODEL": options.model,
                    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                    "PYTHONPATH": str(HERE),
                },
                timeout=LIMIT_S,
                check=False,
            )
            num_failed += done.returncode != 0
            result = "[green]passed" if not done.returncode else "[red]failed"
            table.add_row(name, result, f"{time.monotonic() - began_s:.0f}")
    console.print(table)
    sys.exit(num_failed > 0)


if __name__ == "__main__":
    main()
