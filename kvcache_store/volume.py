"""Where segment files lie: a folder of any POSIX file system."""

import errno
import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from diptych.core.errors import Misconfigured, Overloaded

IOV_MAX = 1024
OPEN_READERS = 128


class VolumeFull(Overloaded):
    """There is no room for what was to be written; nothing of it counts as written."""

    default_code = "volume_full"


class Appender(Protocol):
    """A file that only grows."""

    def append(self, chunks: Sequence[bytes | memoryview]) -> None:
        """Write all of it, or raise VolumeFull or OSError; then the tail is torn."""
        ...

    def sync(self) -> None:
        """All that was appended survives a power cut."""
        ...

    def close(self) -> None: ...


class Volume(Protocol):
    """Files by name. May be called from several threads."""

    def names(self) -> list[str]: ...

    def size(self, name: str) -> int: ...

    def create(self, name: str) -> Appender: ...

    def extend(self, name: str) -> Appender:
        """Append to a file that exists."""
        ...

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Shorter at the end of the file; FileNotFoundError if it is gone."""
        ...

    def truncate(self, name: str, size_bytes: int) -> None: ...

    def remove(self, name: str) -> None:
        """Twice is once."""
        ...

    def sync(self) -> None:
        """Files that were made or removed stay so after a power cut."""
        ...


class Folder:
    """The volume that production uses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: OrderedDict[str, _Reader] = OrderedDict()
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Misconfigured(f"{path}: {error.strerror}; expected a writable folder") from None

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self._path) if entry.is_file())

    def size(self, name: str) -> int:
        return (self._path / name).stat().st_size

    def create(self, name: str) -> "File":
        return File(self._path / name, os.O_CREAT | os.O_EXCL)

    def extend(self, name: str) -> "File":
        return File(self._path / name, os.O_CREAT)

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        return self._reader(name).read(offset, size_bytes)

    def truncate(self, name: str, size_bytes: int) -> None:
        os.truncate(self._path / name, size_bytes)

    def remove(self, name: str) -> None:
        self._readers.pop(name, None)
        (self._path / name).unlink(missing_ok=True)

    def _reader(self, name: str) -> "_Reader":
        """An open file: one that is read on keeps the kernel reading ahead."""
        reader = self._readers.pop(name, None) or _Reader(self._path / name)
        self._readers[name] = reader  # last in the order of use
        while len(self._readers) > OPEN_READERS:
            with suppress(KeyError):  # another thread was faster
                self._readers.popitem(last=False)
        return reader

    def sync(self) -> None:
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Reader:
    """A file open for reading until nobody uses it any more, in whatever thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Shorter at the end of the file."""
        data = os.pread(self._file, size_bytes, offset)
        while len(data) < size_bytes:  # a signal, or a file system that reads in pieces
            more = os.pread(self._file, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data


class File:
    """Appends to one file of a folder."""

    def __init__(self, path: Path, flags: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)

    def append(self, chunks: Sequence[bytes | memoryview]) -> None:
        assert len(chunks) <= IOV_MAX
        left = sum(map(len, chunks))
        try:
            written = os.writev(self._file, chunks)
            if written < left:  # a signal, or the last room there was
                rest = memoryview(b"".join(chunks))[written:]
                while rest:
                    rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise VolumeFull(f"the volume is full: {error.strerror}") from error
            raise

    def sync(self) -> None:
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)
