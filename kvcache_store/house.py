"""The store's folder: who uses it, which format it has, and the parts that live in it.

FORMAT      the number of the format
lock        held by the process that uses the folder; its pid and address inside
tenants/    a record a tenant, and the receipts of deletions
segments/   the disk tier
"""

import fcntl
import os
from pathlib import Path
from typing import Self, TextIO

from diptych.core.errors import Misconfigured
from diptych.kvcache_store.format import VERSION
from diptych.kvcache_store.volume import Folder

_SECURE = "tls"


class House:
    """A folder that one process uses, as a context."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    @property
    def tenants(self) -> Path:
        return self.path / "tenants"

    @property
    def size_bytes(self) -> int:
        """What the segments take."""
        folder = self.path / "segments"
        return sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else 0

    def volume(self) -> Folder:
        return Folder(self.path / "segments")

    def announce(self, address: str, *, is_secure: bool = False) -> None:
        """Say in the lock file where we answer, and whether by TLS."""
        assert self._file is not None
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{os.getpid()} {address}{f' {_SECURE}' if is_secure else ''}\n")
        self._file.flush()

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = (self.path / "lock").open("a+")
        except OSError as error:
            raise Misconfigured(
                f"--cache-dir {self.path}: {error.strerror}; expected a writable folder"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise Misconfigured(
                f"--cache-dir {self.path} is in use by another store; every store needs its own"
            ) from None
        self._file = file
        self._check_format()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None

    def _check_format(self) -> None:
        path = self.path / "FORMAT"
        if not path.exists():
            path.write_text(f"{VERSION}\n")
        elif (found := path.read_text().strip()) != str(VERSION):
            self.__exit__()
            raise Misconfigured(
                f"--cache-dir {self.path} has format {found[:20]!r}; expected {VERSION}. "
                "Remove the folder, or give another"
            )


def address_in(path: Path) -> str | None:
    """Where the store that uses a folder answers; None if nobody uses it."""
    try:
        with (path / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return (_said(path)[1:] or [""])[0]
    return None


def is_secure_in(path: Path) -> bool:
    """Whether the store that uses a folder answers by TLS alone."""
    return _SECURE in _said(path)[2:]


def _said(path: Path) -> list[str]:
    return (path / "lock").read_text().split()
