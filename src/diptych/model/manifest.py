"""What a checkpoint's bytes are: checked against its `SHA256SUMS`, and named by one digest.

The file is what `sha256sum *.json *.safetensors > SHA256SUMS` writes. A folder
without one is read all the same: its values are part of every KV block's identity.
"""

import hashlib
import logging
import os
import re
import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from diptych.core.errors import Misconfigured
from diptych.model.checkpoint import INDEX_FILE, weight_files
from diptych.model.spec import CONFIG_FILE

SUMS_FILE: Final = "SHA256SUMS"
SUMMED: Final = (".json", ".safetensors")
MAX_THREADS: Final = 16  # one reads some 0.5 to 1.5 GB/s
SLOW_S: Final = 10.0  # then a person is told how far it is

_LINE = re.compile(r"([0-9a-f]{64})[ ][ *]([^/\0]+)")

log = logging.getLogger(__name__)


def verify(folder: Path | str) -> bytes:
    """Read every weight; BLAKE2b-128 over names and SHA-256 of index, shards and `config.json`.

    Misconfigured names the file whose bytes are not those that `SHA256SUMS` promises, or a shard
    that it leaves out.
    """
    folder = Path(folder)
    weights = weight_files(folder)
    named = [path for path in (folder / CONFIG_FILE, folder / INDEX_FILE) if path.exists()]
    promised = read_sums(folder)
    others = [folder / name for name in sorted(promised) if folder / name not in {*named, *weights}]
    sums = _sums([*named, *weights, *others])
    for name, wanted in promised.items():
        if sums[name] != wanted:
            raise Misconfigured(
                f"{folder / name}: altered or damaged: its SHA-256 is {sums[name]}, {SUMS_FILE} "
                f"says {wanted}"
            )
    for path in weights:
        if promised and path.name not in promised:
            raise Misconfigured(f"{path}: {SUMS_FILE} does not name it")
    state = hashlib.blake2b(digest_size=16)
    for path in [*named, *weights]:
        for field in (path.name.encode(), bytes.fromhex(sums[path.name])):
            state.update(struct.pack("<Q", len(field)) + field)
    return state.digest()


def read_sums(folder: Path) -> dict[str, str]:
    """File name → SHA-256 in hex; empty without a `SHA256SUMS`."""
    path = folder / SUMS_FILE
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: {error}") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise Misconfigured(
                f"{path}: line {number}: expected 64 hex digits, two spaces and the name of a file "
                "in this folder"
            )
        sums[found[2]] = found[1]
    if not sums:
        raise Misconfigured(f"{path}: it names no file")
    return sums


def write_sums(folder: Path) -> None:
    """Write a folder's `SHA256SUMS`: of all that a model is made of."""
    sums = _sums(sorted(path for path in folder.iterdir() if path.suffix in SUMMED))
    text = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    (folder / SUMS_FILE).write_text(text)


def _sums(files: list[Path]) -> Mapping[str, str]:
    """SHA-256 of each, by name; several at a time, as hashing leaves Python's lock."""
    total = sum(_size(path) for path in files)
    began_s = told_s = time.monotonic()
    sums, read = {}, 0
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        for path, digest in zip(files, pool.map(_sum, files), strict=True):
            sums[path.name] = digest
            read += _size(path)
            if (now_s := time.monotonic()) - told_s >= SLOW_S:
                told_s = now_s
                log.info(
                    "verifying weights read_gb=%.1f of_gb=%.1f after_s=%.0f",
                    read / 1e9,
                    total / 1e9,
                    now_s - began_s,
                )
    return sums


def _sum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}, although {SUMS_FILE} names it") from error
