"""Output tokens to what a client sees: reasoning, then the answer.

Markers count only as token ids: the same characters spelled with ordinary tokens are text. The
result depends on the sequence of ids alone, not on how steps group them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    ) -> None:
        self._tokenizer = tokenizer
        self._think = tokenizer.find(Marker.THINK)
        self._end_think = tokenizer.find(Marker.END_THINK)
        self._roles = _ids(tokenizer, _ROLES)
        self._silent = _ids(tokenizer, _SILENT)
        self._ignore_eos = ignore_eos
        self._section = Section.REASONING if thinking else Section.CONTENT
        self._at_start = True  # of the section: leading newlines are dropped
        self._newlines = 0  # held at the end of reasoning
        self._detokenizer = Detokenizer()
        self._stops = StopFinder(stops)
        self.reasoning_tokens = 0
        self.is_over = False  # the turn ended by a stop string or by a role id

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def push(self, token_id: int) -> list[Piece]:
        """Text that this token made certain, in order."""
        if token_id in self._roles or token_id in self._silent:
            self.is_over = self.is_over or (token_id in self._roles and not self._ignore_eos)
            return self._say(self._detokenizer.finish())
        if token_id == self._end_think:
            return self._end_reasoning()
        if token_id == self._think and self._section is Section.REASONING and self._at_start:
            return []
        self.reasoning_tokens += self._section is Section.REASONING
        return self._say(self._detokenizer.push(self._tokenizer.token_bytes(token_id)))

    def finish(self, *, cut: bool) -> list[Piece]:
        """Everything held; `cut` = the output ended in the middle, by its length."""
        pieces = self._say(self._detokenizer.finish(cut=cut))
        held = "\n" * self._newlines + self._stops.finish()
        return [*pieces, Piece(self._section, held)] if held else pieces

    def _end_reasoning(self) -> list[Piece]:
        pieces = self._say(self._detokenizer.finish())
        if self._section is Section.REASONING:
            self._section = Section.CONTENT
            self._at_start = True
            self._newlines = 0
        return pieces

    def _say(self, text: str) -> list[Piece]:
        if self._at_start:
            text = text.lstrip("\n")
        if not text:
            return []
        self._at_start = False
        if self._section is Section.REASONING:
            kept = text.rstrip("\n")
            held, self._newlines = self._newlines, len(text) - len(kept)
            if kept:
                text = "\n" * held + kept
            else:
                self._newlines += held
                text = ""
        else:
            text = self._stops.push(text)
            self.is_over = self.is_over or self._stops.found is not None
        return [Piece(self._section, text)] if text else []


def _ids(tokenizer: Tokenizer, markers: Sequence[Marker]) -> frozenset[int]:
    found = (tokenizer.find(marker) for marker in markers)
    return frozenset(token_id for token_id in found if token_id is not None)
