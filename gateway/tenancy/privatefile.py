"""Files that only their owner can read."""

import os
import secrets
from pathlib import Path

from diptych.core.errors import Misconfigured


def make(path: Path, text: str = "") -> None:
    """Create a file with mode 0600 and this text, unless it is there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    try:
        os.link(draft, path)  # whoever links first wins
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def check(path: Path) -> None:
    """Misconfigured if others can read it."""
    if path.stat().st_mode & 0o077:
        raise Misconfigured(f"{path} can be read by others; expected mode 0600: chmod 600 {path}")


def read(path: Path) -> str:
    """The text of a private file."""
    check(path)
    return path.read_text()
