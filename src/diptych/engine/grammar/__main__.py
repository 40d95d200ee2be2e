"""The process in which grammars are tried. It imports the library once, and forks for each trial:
a fork starts in milliseconds, and may be killed or crash without taking anything along.

Reads from standard input a first frame with the vocabulary, then trials; ends with its input.
"""

import json
import os
import pickle
import random
import resource
import selectors
import signal
import struct
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diptych.core.errors import BadRequest
from diptych.engine.grammar.backends import Backend, make_backend
from diptych.engine.grammar.matcher import tokens_of
from diptych.engine.grammar.trial import TrialLimits
from diptych.text.constraints import Constraint, Kind, build
from diptych.text.constraints.grammar import invalid
from diptych.text.constraints.vocabulary import Vocabulary

_SIZE = struct.Struct("<I")
_PROBE_TOKENS = 24
_PROBE_CPU_S = 0.25
_STACK_BYTES = 2 << 20  # a fourth of what the worker has: what recurses deep fails here, not there
_WARM = Constraint(Kind.JSON_OBJECT, "")  # its rules are in most grammars
_MEMORY_MAP = Path("/proc/self/statm")


@dataclass(slots=True)
class Running:
    """A trial in its own process."""

    number: int
    pid: int
    pipe: int
    deadline: float
    param: str


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker ends us
    replies = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    frame = _read_frame()
    if frame is None:
        return
    name, vocabulary, limits = pickle.loads(frame)
    backend = make_backend(name, vocabulary)
    backend.compile(build(_WARM), _WARM.param)
    _write_frame(replies, b"ready")
    Server(backend, vocabulary, limits, replies).serve()


class Server:
    """Reads trials, keeps a few running, kills what takes too long."""

    def __init__(
        self, backend: Backend, vocabulary: Vocabulary, limits: TrialLimits, replies: int
    ) -> None:
        self.backend = backend
        self.vocabulary = vocabulary
        self.limits = limits
        self.replies = replies
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, Running] = {}
        self.queue: deque[bytes] = deque()

    def serve(self) -> None:
        """Until the input ends."""
        self.selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select(self.next_deadline()):
                if key.fd != 0:
                    self.finish(self.running[key.fd], is_killed=False)
                    continue
                frame = _read_frame()
                if frame is None:
                    for trial in self.running.values():
                        os.kill(trial.pid, signal.SIGKILL)
                    return
                self.queue.append(frame)
            for trial in [t for t in self.running.values() if t.deadline <= time.monotonic()]:
                os.kill(trial.pid, signal.SIGKILL)
                self.finish(trial, is_killed=True)
            while self.queue and len(self.running) < self.limits.parallel:
                self.start(self.queue.popleft())

    def next_deadline(self) -> float | None:
        """Seconds until a trial must end."""
        ends = [t.deadline for t in self.running.values()]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def start(self, frame: bytes) -> None:
        """Fork a trial."""
        number = int.from_bytes(frame[:8], "little")
        constraint = Constraint.unpack(frame[8:])
        result, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(result)
            attempt(constraint, self.backend, self.vocabulary, self.limits, sink)
            os._exit(0)
        os.close(sink)
        deadline = time.monotonic() + self.limits.wall_s
        self.running[result] = Running(number, pid, result, deadline, constraint.param)
        self.selector.register(result, selectors.EVENT_READ)

    def finish(self, trial: Running, *, is_killed: bool) -> None:
        """Collect a trial that ended, and answer."""
        self.selector.unregister(trial.pipe)
        del self.running[trial.pipe]
        with os.fdopen(trial.pipe, "rb") as pipe:
            text = b"" if is_killed else pipe.read()
        _, status, used = os.wait4(trial.pid, 0)
        cpu_s = used.ru_utime + used.ru_stime
        answer: dict[str, object] = {
            "error": _why(status),
            "param": trial.param,
            "is_overload": is_killed and cpu_s < cpu_limit_s(self.limits, self.vocabulary) / 2,
        }
        answer |= json.loads(text) if text else {}
        _write_frame(self.replies, json.dumps(answer | {"number": trial.number}).encode())


def cpu_limit_s(limits: TrialLimits, vocabulary: Vocabulary) -> float:
    """Processor time that one trial may take."""
    return limits.cpu_s + limits.cpu_s_per_token * len(vocabulary.tokens)


def _why(status: int) -> str:
    """Why a trial ended without a word."""
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if ended_by in (signal.SIGPROF, signal.SIGKILL):
        return "the constraint takes too long to compile"
    if ended_by == signal.SIGSEGV:
        return "the constraint is nested too deep to compile"
    return "the constraint takes too much memory to compile"


def attempt(
    constraint: Constraint,
    backend: Backend,
    vocabulary: Vocabulary,
    limits: TrialLimits,
    sink: int,
) -> None:
    """One trial, in its own process: compile, and walk a little to see what a token costs."""
    os.nice(2)  # after the engine's own work
    signal.setitimer(signal.ITIMER_PROF, cpu_limit_s(limits, vocabulary))  # ends the process
    if _MEMORY_MAP.exists():
        pages = int(_MEMORY_MAP.read_text().split()[0])
        most = pages * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a library says when it aborts
    answer: dict[str, str | None] = {"error": None, "param": constraint.param}
    threading.stack_size(_STACK_BYTES)
    with ThreadPoolExecutor(1) as pool:
        walk = pool.submit(_walk, constraint, backend, vocabulary)
    try:
        walk.result()
    except BadRequest as error:
        answer = {"error": error.message, "param": error.param}
    except MemoryError:
        os._exit(1)
    os.write(sink, json.dumps(answer).encode())


def _walk(constraint: Constraint, backend: Backend, vocabulary: Vocabulary) -> None:
    matcher = backend.compile(build(constraint), constraint.param).matcher()
    masks = np.zeros((1, vocabulary.num_words), dtype=np.int32)
    chance = random.Random(constraint.key)
    started = time.process_time()
    for _ in range(_PROBE_TOKENS):
        matcher.fill(masks, 0)
        allowed = tokens_of(masks[0])
        if not allowed:
            raise invalid("the constraint leads to a dead end", constraint.param)
        texts = [t for t in allowed if t not in vocabulary.stop_ids]
        if not texts or not matcher.accept(chance.choice(texts)):
            break
    if time.process_time() - started > _PROBE_CPU_S:
        raise invalid("the constraint costs too much at every token", constraint.param)


def _read_frame() -> bytes | None:
    head = _read_exactly(_SIZE.size)
    return None if head is None else _read_exactly(_SIZE.unpack(head)[0])


def _read_exactly(size: int) -> bytes | None:
    """From the file itself: a buffer would hide frames from the selector."""
    held = bytearray()
    while len(held) < size:
        piece = os.read(0, size - len(held))
        if not piece:
            return None
        held += piece
    return bytes(held)


def _write_frame(fd: int, frame: bytes) -> None:
    held = memoryview(_SIZE.pack(len(frame)) + frame)
    while held:
        held = held[os.write(fd, held) :]


if __name__ == "__main__":
    main()
