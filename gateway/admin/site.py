"""What the admin API works on: the parts of one gateway that an operator may reach."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.gateway.decisions import Decision
from diptych.gateway.tenancy.office import Office
from diptych.router.client import Fleet
from diptych.transport.channel import Dial, connect


@dataclass(frozen=True, slots=True)
class Site:
    """Handed over by __main__."""

    office: Office
    fleet: Callable[[], Fleet | None]
    is_connected: Callable[[], bool]
    on_load: Callable[[], None]
    settings: dict[str, Any] = field(repr=False)  # masked
    version: Callable[[], str]
    routers: Callable[[], Sequence[str]] = lambda: ()  # their addresses
    supervisor: str = ""  # where it takes orders; "": this platform has none
    control: str = field(default="", repr=False)  # what opens the supervisor
    stores: Callable[[], Sequence[str]] = lambda: ()  # addresses of the KV cache's nodes
    decisions: Callable[[], Sequence[Decision]] = lambda: ()  # newest first
    gateway_id: str = ""
    dial: Dial = connect  # how stations are called


class Levels:
    """Log levels that an operator set, some for a while."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, level: str, ttl_s: float | None) -> str:
        """Set it, for ever or for a while; the level that held before."""
        logger = logging.getLogger(name)
        was = logging.getLevelName(logger.getEffectiveLevel()).lower()
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if ttl_s is not None:
            self._before.setdefault(name, logger.level)
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(ttl_s, self._back, name)
        else:
            self._before.pop(name, None)
        logger.setLevel(level.upper())
        return was

    def close(self) -> None:
        """As before, at once."""
        for name, timer in list(self._timers.items()):
            timer.cancel()
            self._back(name)

    def _back(self, name: str) -> None:
        self._timers.pop(name, None)
        logging.getLogger(name).setLevel(self._before.pop(name, logging.NOTSET))
