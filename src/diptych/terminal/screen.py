"""Where an answer appears: for a person, for the next program of a pipe, or as JSON."""

import json
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from diptych.terminal.answer import Answer

# What would move the cursor, ring or recolour the terminal is shown instead.
_SHOWN = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
}


class Screen(Protocol):
    """Shows one answer at a time."""

    def begin(self) -> None:
        """An answer is waited for."""

    def grow(self, reasoning: str, content: str) -> None:
        """More of it has come."""

    def end(self) -> None:
        """It is over, however it went."""

    def conclude(self, answer: Answer) -> None:
        """It went well, or was stopped: say what it was like."""


class TerminalScreen:
    """Reasoning is dim, the answer plain, and facts stand below."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting: Status | None = None
        self._has_reasoning = self._has_content = False

    def begin(self) -> None:
        self._has_reasoning = self._has_content = False
        self._waiting = self._console.status("waiting", spinner="dots", spinner_style="dim")
        self._waiting.start()

    def grow(self, reasoning: str, content: str) -> None:
        if reasoning or content:
            self._stop_waiting()
        if reasoning:
            self._has_reasoning = True
            self._write(reasoning, "dim")
        if content:
            if self._has_reasoning and not self._has_content:
                self._write("\n\n")
            self._has_content = True
            self._write(content)

    def end(self) -> None:
        self._stop_waiting()
        if self._has_reasoning or self._has_content:
            self._console.print()

    def conclude(self, answer: Answer) -> None:
        self._console.print(Text(" · ".join(answer.facts()), "dim italic"), soft_wrap=True)

    def _write(self, text: str, style: str = "") -> None:
        self._console.print(Text(text.translate(_SHOWN), style), end="", soft_wrap=True)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None


class PlainScreen:
    """The content alone, byte for byte, and a line break at its end."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = "\n"

    def begin(self) -> None:
        self._last = "\n"

    def grow(self, reasoning: str, content: str) -> None:
        if content:
            self._last = content
            self._out.write(content)
            self._out.flush()

    def end(self) -> None:
        if not self._last.endswith("\n"):
            self._out.write("\n")

    def conclude(self, answer: Answer) -> None:
        self._out.flush()


class JsonScreen:
    """Everything about the answer as one JSON object, when it is over."""

    def __init__(self, out: TextIO, **more: Any) -> None:
        self._out = out
        self._more = more

    def begin(self) -> None:
        """Not yet."""

    def grow(self, reasoning: str, content: str) -> None:
        """Not yet."""

    def end(self) -> None:
        """Not yet."""

    def conclude(self, answer: Answer) -> None:
        print(json.dumps(self._more | answer.plain(), ensure_ascii=False), file=self._out)
