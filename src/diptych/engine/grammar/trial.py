"""The client of the side process in which a grammar is tried before a worker compiles it.

A grammar may need minutes, gigabytes or a crash of the library: there it costs a process that is
killed, here it would cost the worker. What passed the trial compiles here in the same time.
"""

import asyncio
import contextlib
import json
import logging
import pickle
import struct
import sys
from dataclasses import dataclass
from itertools import count

from diptych.core.errors import Lost, Overloaded
from diptych.engine.grammar.backends import BackendName
from diptych.text.constraints.constraint import Constraint
from diptych.text.constraints.grammar import invalid
from diptych.text.constraints.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """What a grammar may cost, and how many may wait."""

    cpu_s: float = 0.8  # of the trial's own work: a busy machine is no fault of the grammar
    cpu_s_per_token: float = 20e-6  # of the vocabulary, which every state is masked against
    wall_s: float = 5.0
    memory_bytes: int = 512 << 20
    parallel: int = 8  # they share the processors: a small one does not wait for a big one
    waiting: int = 32
    start_s: float = 60.0


class Trial:
    """Runs trials one after the other or a few at a time; starts its process again if it dies."""

    def __init__(
        self, vocabulary: Vocabulary, backend: BackendName, limits: TrialLimits | None = None
    ) -> None:
        self._limits = limits or TrialLimits()
        self._hello = pickle.dumps((backend, vocabulary, self._limits))
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process, while it lives."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process; it is ready when it says so. Later calls do nothing while it lives."""
        async with self._starting:
            if self._process is not None:
                return
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-W", "ignore", "-m", "diptych.engine.grammar",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdin and process.stdout
            self._process = process
            try:
                async with asyncio.timeout(self._limits.start_s):
                    _write(process.stdin, self._hello)
                    await process.stdin.drain()
                    await _read(process.stdout)
            except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
                await self.close()
                raise Lost("the process that tries grammars did not start") from error
            self._reader = asyncio.create_task(self._receive(process.stdout))

    async def run(self, constraint: Constraint) -> None:
        """Return if the constraint compiles within the limits; BadRequest if it does not."""
        if len(self._waiting) >= self._limits.waiting:
            raise Overloaded("too many grammars wait to be compiled", retry_after_s=1)
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self.start()
            stream = self._process.stdin if self._process else None
            if stream is None:
                raise Lost("the process that tries grammars is gone")
            async with asyncio.timeout(self._longest_wait_s()):
                _write(stream, number.to_bytes(8, "little") + constraint.pack())
                await stream.drain()
                found = await answer
        except (TimeoutError, OSError) as error:
            raise Lost("the process that tries grammars does not answer") from error
        finally:
            self._waiting.pop(number, None)
        if found["is_overload"]:
            raise Overloaded("grammars compile too slowly now", retry_after_s=5)
        if found["error"] is not None:
            raise invalid(str(found["error"]), str(found["param"]))

    def _longest_wait_s(self) -> float:
        turns = self._limits.waiting / self._limits.parallel + 1
        return self._limits.wall_s * turns

    async def close(self) -> None:
        """End the process, and wait until it is gone."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        process, self._process, self._reader = self._process, None, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()

    async def _receive(self, stream: asyncio.StreamReader) -> None:
        """Hand answers to those who wait, until the process ends."""
        try:
            while True:
                frame = await _read(stream)
                found = json.loads(frame)
                answer = self._waiting.get(found["number"])
                if answer is not None and not answer.done():
                    answer.set_result(found)
        except asyncio.IncompleteReadError:
            log.error("the process that tries grammars ended; starting it again when needed")
            self._process = None
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Lost("the process that tries grammars ended"))


def _write(stream: asyncio.StreamWriter, frame: bytes) -> None:
    stream.write(_SIZE.pack(len(frame)) + frame)


async def _read(stream: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await stream.readexactly(_SIZE.size))
    return await stream.readexactly(size)
