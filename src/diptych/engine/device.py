"""Where a step computes: work is launched, done in order of launch, and waited for.

On the CPU a thread of its own, or none; on a GPU a launch would only queue kernels on a stream, and
its result wait for an event. Whoever launches must not care which.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
Done = TypeVar("Done", covariant=True)


class Pending(Protocol[Done]):
    """Work that was launched."""

    def result(self) -> Done:
        """Wait for it; raises what it raised. The engine's `idle_s` tells others of a long wait."""
        ...


class Device(Protocol):
    """Does what is launched, one after the other."""

    def launch(self, work: Callable[[], T]) -> Pending[T]: ...

    def close(self) -> None:
        """Let what was launched end; nothing may be launched any more."""
        ...


class Inline:
    """Work is done by the time it is launched."""

    def launch(self, work: Callable[[], T]) -> Pending[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work())
        except Exception as error:  # raised to whoever asks for the result, as a thread would
            done.set_exception(error)
        return done

    def close(self) -> None:
        pass


class DeviceThread:
    """Work is done on a thread of its own, while the caller does something else."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="device")

    def launch(self, work: Callable[[], T]) -> Pending[T]:
        return self._executor.submit(work)

    def close(self) -> None:
        self._executor.shutdown()
