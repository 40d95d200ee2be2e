"""The data folder of a platform: its lock, its state file, its logs."""

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, TextIO

from diptych.core.errors import Misconfigured
from diptych.telemetry import logs

LOG_BYTES = 16 << 20  # then the file is kept once as .1 and begun anew


@dataclass(frozen=True, slots=True)
class Running:
    """One process in the state file. `pid` is 0 between two lives."""

    role: str
    id: str
    pid: int
    address: str
    metrics_address: str
    restarts: int
    started_at: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class State:
    """What `diptych status` reads."""

    pid: int  # of the supervisor
    base_url: str
    router: str  # addresses of all routers, comma-separated
    model: str
    processes: tuple[Running, ...]
    admin_url: str = ""  # "" is none
    control: str = ""  # where the supervisor takes orders; "" is nowhere
    certificate: str = ""  # path of the public port's; "" is plain HTTP
    certificates: str = ""  # folder of those that stations show each other; "" is no TLS

    @property
    def certificates_folder(self) -> Path | None:
        return Path(self.certificates) if self.certificates else None

    @classmethod
    def read(cls, data_dir: Path) -> Self | None:
        """The running platform's state; None if none runs there."""
        if not is_locked(data_dir):
            return None  # a state file without a lock was left behind by a killed supervisor
        try:
            fields = json.loads((data_dir / "state.json").read_text())
        except FileNotFoundError:
            return None  # just starting
        processes = tuple(Running(**process) for process in fields.pop("processes"))
        return cls(**fields, processes=processes)

    def write(self, data_dir: Path) -> None:
        """Replace the state file at once."""
        draft = data_dir / ".state.json.draft"
        draft.write_text(json.dumps(asdict(self), indent=1))
        os.replace(draft, data_dir / "state.json")


class Lock:
    """One supervisor a data folder. The kernel lets go of it however the process ends."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = (self._data_dir / "lock").open("a+")
        except OSError as error:
            raise Misconfigured(
                f"--data-dir {self._data_dir}: {error.strerror}; expected a writable folder"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise Misconfigured(
                f"{self._data_dir} is in use: `diptych up` runs there with pid {pid}; "
                "stop it, or choose another folder with --data-dir"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(FileNotFoundError):
            (self._data_dir / "state.json").unlink()
        if self._file is not None:
            self._file.close()


def is_locked(data_dir: Path) -> bool:
    """Whether a supervisor holds the folder."""
    try:
        with (data_dir / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class LogFile:
    """Lines of one process, in its own file, bounded."""

    def __init__(
        self, path: Path, limit_bytes: int = LOG_BYTES, *, log_format: str = "text"
    ) -> None:
        self._is_json = log_format == "json"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._limit_bytes = limit_bytes
        self._file = path.open("ab")

    def write(self, line: bytes) -> None:
        """Append a line; turn the page when the file is full. A full disk costs the line."""
        with suppress(OSError):
            if self._file.tell() + len(line) > self._limit_bytes:
                self._file.close()
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                self._file = self._path.open("ab")
            self._file.write(line + b"\n")
            self._file.flush()

    def mark(self, text: str) -> None:
        """Say something about the process itself, in the form that it logs in."""
        if self._is_json:
            process = self._path.name.removesuffix(".log")
            self.write(logs.json_line("supervisor", process, "diptych.supervisor", text).encode())
        else:
            self.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {text}".encode())

    def close(self) -> None:
        self._file.close()
