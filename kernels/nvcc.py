"""Build a CUDA C++ file with nvcc at its first use.

Libraries go to ~/.cache/diptych, named after a hash of options, source and the headers beside it:
a changed file is built anew, and several processes may build at once.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

OPTIONS = ("-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a")
SHARED = ("-shared", "-Xcompiler", "-fPIC")


def build(source: Path, *options: str) -> Path:
    """-> the shared library; raises RuntimeError that says what is missing or what nvcc said."""
    command = [*OPTIONS, *options, *SHARED]
    parts = [source, *sorted(source.parent.glob("*.cuh"))]
    text = " ".join(command).encode() + b"".join(part.read_bytes() for part in parts)
    key = hashlib.sha256(text).hexdigest()[:16]
    library = Path.home() / ".cache" / "diptych" / f"{source.stem}-{key}.so"
    if library.exists():
        return library
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        raise RuntimeError(f"no nvcc on PATH to build {source.name} with")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            done = subprocess.run(
                [nvcc, *command, "-o", str(made), str(source)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"nvcc failed on {source.name}: {done.stderr.strip()}")
            os.replace(made, library)
    except OSError as error:
        raise RuntimeError(f"cannot build {source.name}: {error}") from error
    return library
