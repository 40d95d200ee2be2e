"""Output tokens to what a client sees: reasoning, then the answer.

Markers count only as token ids: the same characters spelled with ordinary tokens are text. The
result depends on the sequence of ids alone, not on how steps group them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto

from diptych.text.detokenize import Detokenizer
from diptych.text.stops import StopFinder
from diptych.text.tokenizer import Marker, Tokenizer


class Section(StrEnum):
    """Part of an answer."""

    REASONING = auto()
    CONTENT = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one section."""

    section: Section
    text: str
    tokens: tuple[int, ...] = field(default=(), compare=False)  # that begin in it; 0: first pushed


_ROLES = (Marker.BOS, Marker.SYSTEM, Marker.USER, Marker.ASSISTANT, Marker.REMINDER)
_SILENT = (Marker.EOS, Marker.PAD, Marker.DSML)


class Parser:
    """Of one output. The first section is known from the prompt, never guessed from the output."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        thinking: bool,
        stops: Sequence[str] = (),
        ignore_eos: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """No stop string ends in the first `min_tokens` of the output."""
        self._tokenizer = tokenizer
        self._think = tokenizer.find(Marker.THINK)
        self._end_think = tokenizer.find(Marker.END_THINK)
        self._roles = _ids(tokenizer, _ROLES)
        self._silent = _ids(tokenizer, _SILENT)
        self._ignore_eos = ignore_eos
        self._min_tokens = min_tokens
        self._num_pushed = 0
        self._section = Section.REASONING if thinking else Section.CONTENT
        self._at_start = True  # of the section: leading newlines are dropped
        self._newlines = 0  # held at the end of reasoning
        self._detokenizer = Detokenizer()
        self._stops = StopFinder(stops)
        self._places = _Places()
        self.reasoning_tokens = 0
        self.is_over = False  # the turn ended by a stop string or by a role id

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def push(self, token_id: int) -> list[Piece]:
        """Text that this token made certain, in order."""
        self._num_pushed += 1
        if token_id in self._roles or token_id in self._silent:
            self.is_over = self.is_over or (token_id in self._roles and not self._ignore_eos)
            return self._say(self._detokenizer.finish())
        if token_id == self._end_think:
            return self._end_reasoning()
        if token_id == self._think and self._section is Section.REASONING and self._at_start:
            return []
        self.reasoning_tokens += self._section is Section.REASONING
        data = self._tokenizer.token_bytes(token_id)
        if data:
            self._places.add(self._num_pushed - 1)
        return self._say(self._detokenizer.push(data))

    def finish(self, *, cut: bool) -> list[Piece]:
        """Everything held; `cut` = the output ended in the middle, by its length."""
        pieces = self._say(self._detokenizer.finish(cut=cut))
        held = "\n" * self._newlines + self._stops.finish()
        return [*pieces, self._piece(held)] if held else pieces

    def _end_reasoning(self) -> list[Piece]:
        pieces = self._say(self._detokenizer.finish())
        if self._section is Section.REASONING:
            self._section = Section.CONTENT
            self._at_start = True
            self._newlines = 0
            self._places = _Places()  # what is left were the newlines
        return pieces

    def _say(self, text: str) -> list[Piece]:
        if self._at_start:
            text = text.lstrip("\n")
        if not text:
            if not self._detokenizer.is_holding:
                self._places.drop()
            return []
        self._at_start = False
        self._places.enter(len(text))
        if self._section is Section.REASONING:
            kept = text.rstrip("\n")
            held, self._newlines = self._newlines, len(text) - len(kept)
            if kept:
                text = "\n" * held + kept
            else:
                self._newlines += held
                text = ""
        elif self._num_pushed > self._min_tokens:
            text = self._stops.push(text)
            self.is_over = self.is_over or self._stops.found is not None
        return [self._piece(text)] if text else []

    def _piece(self, text: str) -> Piece:
        return Piece(self._section, text, self._places.show(len(text)))


class _Places:
    """Where in the text of a section its tokens begin, so that each is told of with that text."""

    def __init__(self) -> None:
        self._open: list[int] = []  # tokens without a complete character so far
        self._held: list[tuple[int, int]] = []  # a token, and the place where it begins
        self._num_entered = 0  # characters, shown or held back
        self._num_shown = 0

    def add(self, token: int) -> None:
        """Its text comes next."""
        self._open.append(token)

    def drop(self) -> None:
        """The text of the open tokens is seen by nobody."""
        self._open.clear()

    def enter(self, count: int) -> None:
        """The open tokens gave so many characters."""
        self._held += [(token, self._num_entered) for token in self._open]
        self._open.clear()
        self._num_entered += count

    def show(self, count: int) -> tuple[int, ...]:
        """The tokens that begin in the next characters."""
        self._num_shown += count
        shown = tuple(token for token, start in self._held if start < self._num_shown)
        del self._held[: len(shown)]
        return shown


def _ids(tokenizer: Tokenizer, markers: Sequence[Marker]) -> frozenset[int]:
    found = (tokenizer.find(marker) for marker in markers)
    return frozenset(token_id for token_id in found if token_id is not None)
