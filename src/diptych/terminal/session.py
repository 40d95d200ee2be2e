"""A conversation: turns of a person and of the model, and what either may interrupt."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext

from rich.console import Console
from rich.text import Text

from diptych.core.errors import DiptychError
from diptych.terminal.answer import Answer
from diptych.terminal.gateway import Gateway, Message, Wish
from diptych.terminal.line import HELP, Line, Verb, read
from diptych.terminal.screen import Screen

DONE, INTERRUPTED = 0, 130
PROMPT, MORE = "> ", ". "


class Conversation:
    """Asks, shows, and remembers what was said. No interrupt strikes inside a `shield`."""

    def __init__(
        self,
        gateway: Gateway,
        wish: Wish,
        screen: Screen,
        system: str = "",
        shield: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._gateway = gateway
        self._wish = wish
        self._screen = screen
        self._shield = shield
        self._messages: list[Message] = []
        self.system = system

    def ask(self, text: str) -> Answer:
        """One turn; Ctrl-C stops the answer. A turn without an answer is forgotten."""
        said: Message = {"role": "user", "content": text}
        answer = self._listen([*self._opening(), *self._messages, said])
        message = answer.message()
        if message is not None:
            self._messages += [said, message]
        self._screen.conclude(answer)
        return answer

    def clear(self) -> None:
        """Forget all turns."""
        self._messages.clear()

    def _opening(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def _listen(self, messages: list[Message]) -> Answer:
        answer = Answer(time.monotonic())
        try:
            with self._shield():
                self._screen.begin()
            with closing(self._gateway.chat(messages, self._wish)) as chunks:
                for chunk in chunks:
                    with self._shield():
                        self._screen.grow(*answer.take(chunk, time.monotonic()))
        except KeyboardInterrupt:
            answer.is_stopped = True
        finally:
            with self._shield():
                self._screen.end()
        return answer


class Session:
    """Reads what a person types until they leave."""

    def __init__(
        self, conversation: Conversation, console: Console, read_line: Callable[[str], str]
    ) -> None:
        self._conversation = conversation
        self._console = console
        self._read_line = read_line
        self._has_interrupted = False  # the next Ctrl-C leaves

    def run(self) -> int:
        """The exit code."""
        while True:
            try:
                line = read(self._typed())
            except EOFError:
                self._console.print()
                return DONE
            except KeyboardInterrupt:
                self._console.print()
                if self._has_interrupted:
                    return INTERRUPTED
                self._has_interrupted = True
                self._note("Ctrl-C once more leaves; so do Ctrl-D and /exit.")
                continue
            self._has_interrupted = False
            if line.verb is Verb.EXIT:
                return DONE
            self._do(line)

    def _typed(self) -> str:
        typed = self._read_line(PROMPT)
        while typed.endswith("\\"):
            typed = f"{typed[:-1]}\n{self._read_line(MORE)}"
        return typed

    def _do(self, line: Line) -> None:
        match line.verb:
            case Verb.SAY:
                self._ask(line.text)
            case Verb.CLEAR:
                self._conversation.clear()
                self._note("The conversation begins anew.")
            case Verb.SYSTEM:
                self._conversation.system = line.text
                self._note("The system prompt is set." if line.text else "No system prompt.")
            case Verb.HELP:
                self._note(HELP)
            case Verb.UNKNOWN:
                self._note(f"{line.text}: no such command. /help names them.")

    def _ask(self, text: str) -> None:
        try:
            self._has_interrupted = self._conversation.ask(text).is_stopped
        except DiptychError as error:
            self._console.print(Text(error.message, "red"), soft_wrap=True)

    def _note(self, text: str) -> None:
        self._console.print(Text(text, "dim"), soft_wrap=True)
