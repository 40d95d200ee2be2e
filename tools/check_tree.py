"""What the repository promises about itself: size, generated code, links. Part of `make lint`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_TRACKED_BYTES = 45 * 10**6
CONTRACT = Path("src/diptych/contract")
LINKED = (
    "gateway",
    "router",
    "prefill_service",
    "decode_service",
    "vision_encoder",
    "kvcache_store",
    "kernels",
)


def check_size() -> Iterator[str]:
    """Tracked files stay small enough to clone anywhere."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        return  # an unpacked archive has no index to look at
    names = listing.stdout.decode().split("\0")
    sizes = {
        name: (ROOT / name).lstat().st_size
        for name in names
        if name and os.path.lexists(ROOT / name)
    }
    total = sum(sizes.values())
    if total > MAX_TRACKED_BYTES:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
        yield (
            f"tracked files take {total / 1e6:.1f} MB of {MAX_TRACKED_BYTES / 1e6:.0f} MB; "
            f"the largest: {', '.join(f'{n} ({sizes[n] / 1e6:.1f} MB)' for n in largest)}"
        )


def check_generated() -> Iterator[str]:
    """`make proto` would change nothing."""
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / CONTRACT).glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        made = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", "-I", "src", *out, *protos],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            yield f"protoc fails: {made.stderr.strip()}"
            return
        fresh = _generated(Path(folder) / "diptych/contract")
        kept = _generated(ROOT / CONTRACT)
        for name in sorted(fresh.keys() | kept.keys()):
            if fresh.get(name) != kept.get(name):
                yield f"{CONTRACT / name} is not what the protos say; run `make proto`"


def check_links() -> Iterator[str]:
    """Every root folder is importable through its link."""
    for folder in LINKED:
        link = ROOT / "src/diptych" / folder
        wanted = Path("../..") / folder
        if not link.is_symlink() or link.readlink() != wanted:
            yield f"src/diptych/{folder} is not a link to {wanted}; make it with ln -s"
        elif not (link / "__init__.py").is_file():
            yield f"{folder}/__init__.py is missing"


def _generated(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*_pb2*.py*")}


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    wrong = [*check_size(), *check_generated(), *check_links()]
    for complaint in wrong:
        print(f"check_tree: {complaint}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
