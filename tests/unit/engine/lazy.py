"""A device that works only when somebody waits for it: as late as a device can be."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class LazyDevice:
    """Work in order of launch, when the result of it or of later work is asked for."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()

    def launch(self, work: Callable[[], Any]) -> "LazyFuture":
        done = LazyFuture(self)

        def do() -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        self.queue.append(do)
        return done

    def close(self) -> None:
        assert not self.queue


class LazyFuture(Future[Any]):
    """The result of work that is done when it is asked for."""

    def __init__(self, device: LazyDevice) -> None:
        super().__init__()
        self._device = device

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self._device.queue.popleft()()
        return super().result(timeout)
