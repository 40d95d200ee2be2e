"""What `diptych doctor` looks at on this machine, whether or not a platform runs."""

import importlib.metadata
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from diptych import __version__
from diptych.supervisor.findings import Finding, bad, ok, skipped, warning

GIB = 1 << 30
LEAST_DISK_BYTES = GIB
GOOD_DISK_BYTES = 5 * GIB
LEAST_MEMORY_BYTES = GIB // 2
GOOD_MEMORY_BYTES = 2 * GIB
LEAST_FILES = 1024
GOOD_FILES = 4096
NEEDED = ("torch", "grpcio", "protobuf", "pydantic", "tokenizers", "xgrammar")

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def look(data_dir: Path) -> Iterator[Finding]:
    """All of it, in the order in which a person would ask."""
    yield versions()
    yield folder(data_dir)
    yield disk(data_dir)
    yield memory(free_memory_bytes())
    yield files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def versions() -> Finding:
    """Ours, Python's, and those of what we stand on."""
    found, missing = [], []
    for name in NEEDED:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    said = ", ".join([f"diptych {__version__}", f"Python {sys.version.split()[0]}", *found])
    if missing:
        fix = "pip install -c constraints.txt diptych"
        return bad("versions", f"not installed: {', '.join(missing)}", fix)
    return ok("versions", said)


def folder(data_dir: Path) -> Finding:
    """Whether secrets and logs can be kept there, and nobody else reads them."""
    where = data_dir
    while not where.exists():
        where = where.parent
    if not os.access(where, os.W_OK | os.X_OK):
        return bad("data folder", f"{where} cannot be written", "choose one with --data-dir")
    for name in ("cluster_secret", "master_key"):
        path = data_dir / name
        if path.exists() and path.stat().st_mode & 0o077:
            return bad("data folder", f"{path} can be read by others", f"chmod 600 {path}")
    return ok("data folder", str(data_dir) + ("" if data_dir.exists() else ", to be made"))


def disk(data_dir: Path) -> Finding:
    """Room for logs and the KV cache."""
    where = data_dir
    while not where.exists():
        where = where.parent
    free = shutil.disk_usage(where).free
    said = f"{free / GIB:.1f} GiB free at {where}"
    fix = "free some, choose another folder with --data-dir, or lower --cache-disk-bytes"
    if free < LEAST_DISK_BYTES:
        return bad("disk", said, fix)
    return warning("disk", said, fix) if free < GOOD_DISK_BYTES else ok("disk", said)


def memory(free_bytes: int | None) -> Finding:
    """Room for weights and pools."""
    if free_bytes is None:
        return skipped("memory", "this system does not say how much is free")
    said = f"{free_bytes / GIB:.1f} GiB free"
    fix = "end other programs, or lower --num-blocks and --max-num-seqs"
    if free_bytes < LEAST_MEMORY_BYTES:
        return bad("memory", said, fix)
    return warning("memory", said, fix) if free_bytes < GOOD_MEMORY_BYTES else ok("memory", said)


def files(soft: int, hard: int) -> Finding:
    """A stream is a file descriptor, so are its calls to other stations."""
    if soft == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    said = f"{soft} at a time a process"
    fix = f"ulimit -n {GOOD_FILES if hard == resource.RLIM_INFINITY else max(GOOD_FILES, hard)}"
    if soft < LEAST_FILES:
        return bad("open files", said, fix)
    return warning("open files", said, fix) if soft < GOOD_FILES else ok("open files", said)


def free_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """What may still be used: of the machine, or of the container if that is less."""
    if not meminfo.exists():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return free
