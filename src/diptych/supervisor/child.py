"""One process kept running: started, listened to, started again when it dies, stopped."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress

from diptych.supervisor.folder import LogFile, Running
from diptych.supervisor.plan import Process
from diptych.supervisor.restarts import Pace, Restarts

MISCONFIGURED_EXIT = 2  # what the CLI ends with when a setting is wrong: starting again is no use
PR_SET_PDEATHSIG = 1
LAST_WORDS_S = 1.0  # to read what a process said before it ended


class Child:
    """Keeps one process alive. `say` gets its lines and our remarks; `changed` after each event."""

    def __init__(
        self,
        process: Process,
        *,
        environment: Mapping[str, str],
        log: LogFile,
        say: Callable[[str, str], None],
        changed: Callable[[], None],
        pace: Pace | None = None,
    ) -> None:
        self.process = process
        self.exit_code: int | None = None  # of the last life
        self.last_line = ""
        self._environment = environment
        self._log = log
        self._say = say
        self._changed = changed
        self._restarts = Restarts(pace or Pace())
        self._running: asyncio.subprocess.Process | None = None
        self._started_at = 0.0
        self._stopping = asyncio.Event()

    @property
    def running(self) -> Running:
        pid = self._running.pid if self._running is not None else 0
        p = self.process
        return Running(
            role=p.role,
            id=p.id,
            pid=pid,
            address=p.address,
            metrics_address=p.metrics_address,
            restarts=self._restarts.count,
            started_at=self._started_at,
        )

    async def run(self) -> None:
        """Live, die, live again, until `stop`."""
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self.exit_code = await self._live()
            lived_s = time.monotonic() - started_s
            if self._stopping.is_set():
                break
            delay_s = self._restarts.died(lived_s)
            self._remark(
                f"{describe_exit(self.exit_code)} after {lived_s:.1f} s; "
                f"starting it again in {delay_s:g} s (restart {self._restarts.count})"
            )
            self._changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()

    def stop(self) -> None:
        """Ask it to end, and do not start it again."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _live(self) -> int:
        # A pipe of our own: the process has ended when it has ended, whoever inherited its output.
        reader, writer = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self.process.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env=self._environment,
                start_new_session=True,  # the terminal's Ctrl-C is ours alone
                preexec_fn=dies_with(os.getpid()),
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        listening = asyncio.create_task(self._listen(reader))
        self._running = process
        self._started_at = time.time()
        self._log.mark(f"started pid={process.pid}")
        self._changed()
        if self._stopping.is_set():  # asked to stop while it was being started
            process.terminate()
        code = await process.wait()
        self._running = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it may have started itself
        await asyncio.wait([listening], timeout=LAST_WORDS_S)
        listening.cancel()
        self._log.mark(describe_exit(code))
        return code

    async def _listen(self, reader: int) -> None:
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb", 0)
        )
        try:
            async for line in _lines(stream):
                self.last_line = line.decode(errors="replace")
                self._log.write(line)
                self._say(self.process.id, self.last_line)
        finally:
            transport.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._running is not None:
            with suppress(ProcessLookupError):
                self._running.send_signal(number)

    def _remark(self, text: str) -> None:
        self._log.mark(text)
        self._say(self.process.id, text)


def describe_exit(code: int) -> str:
    """For people: `ended with exit code 1`, `was killed by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def dies_with(parent_pid: int) -> Callable[[], None]:
    """For a new process, before exec: be killed when `parent_pid` ends, however that happens."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it ended before we asked
            os._exit(1)

    return prepare


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length, the last one even if it was cut off."""
    rest = b""
    while chunk := await stream.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
