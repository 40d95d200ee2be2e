"""The wall clock of other processes, which a test may set: they read it from a file."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

_HOOK = """\
import mmap
import struct
import sys
import time

with open({shift!r}, "r+b") as file:
    shift = mmap.mmap(file.fileno(), 8)
now, now_ns = time.time, time.time_ns


def ahead_s():
    # gRPC compares what it asks for with a clock in C that no hook can set.
    is_grpc = sys._getframe(2).f_globals.get("__name__", "").startswith("grpc")
    return 0.0 if is_grpc else struct.unpack("<d", shift[:8])[0]


time.time = lambda: now() + ahead_s()
time.time_ns = lambda: now_ns() + int(1e9 * ahead_s())
"""


@dataclass(frozen=True)
class Wall:
    """A folder from which Python processes take their clock as they start."""

    folder: Path

    def __post_init__(self) -> None:
        self.set(0.0)
        hook = _HOOK.format(shift=str(self._shift))
        (self.folder / "sitecustomize.py").write_text(hook)

    @property
    def env(self) -> dict[str, str]:
        """What a process must have in its environment."""
        others = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(self.folder), others)))}

    def set(self, ahead_s: float) -> None:
        """All clocks jump at once; how far they are ahead of the machine's."""
        data = struct.pack("<d", ahead_s)
        if not self._shift.exists():
            self._shift.write_bytes(data)
        with self._shift.open("r+b") as file:
            file.write(data)

    @property
    def _shift(self) -> Path:
        return self.folder / "shift"
