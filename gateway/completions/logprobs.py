"""Log-probabilities of plain text: one entry for every token, of parallel lists."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.gateway.logprobs import LEAST, readable
from diptych.text.detokenize import Detokenizer
from diptych.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Entries:
    """Of tokens in a row."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def shape(self) -> dict[str, Any] | None:
        """The field `logprobs` of a choice; null where no token is told of."""
        if not self.tokens:
            return None
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }

    def extend(self, more: "Entries") -> None:
        """What comes next."""
        self.tokens += more.tokens
        self.token_logprobs += more.token_logprobs
        self.top_logprobs += more.top_logprobs
        self.text_offset += more.text_offset


class ChoiceLogprobs:
    """Tells of each token of one choice once, in order.

    Those that are not shown have entries, too: who scores a text counts on one for each token.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, special: bool = False) -> None:
        """`special`: special tokens are part of the text."""
        self._tokenizer = tokenizer
        self._shown = tokenizer.spelling if special else tokenizer.token_bytes
        self._num_top = num_top
        self._offsets = Offsets()
        self._num_told = 0
        self._spelled: dict[int, str] = {}  # long prompts repeat themselves

    def of_prompt(self, ids: Sequence[int], found: Sequence[Logprob]) -> Entries:
        """Of a prompt that is shown; `found` are those of all but its first token."""
        entries = Entries()
        if not ids:
            return entries
        logprobs = (None, *found[len(found) + 1 - len(ids) :])
        for token_id, logprob in zip(ids, logprobs, strict=True):
            place = self._offsets.push(self._tokenizer.spelling(token_id))
            self._add(entries, token_id, logprob, place)
        self._offsets.end()
        return entries

    def of_output(self, answer: Answer, end: int, num_chars: int) -> Entries:
        """Of sampled tokens up to `end`; none begins behind the text, which has `num_chars`."""
        entries = Entries()
        for index in range(self._num_told, end):
            token_id = answer.token_ids[index]
            place = self._offsets.push(self._shown(token_id))
            self._add(entries, token_id, answer.logprobs[index], min(place, num_chars))
        self._num_told = max(self._num_told, end)
        return entries

    def _add(self, entries: Entries, token_id: int, logprob: Logprob | None, place: int) -> None:
        spelled = self._spell(token_id)
        entries.tokens.append(spelled)
        entries.text_offset.append(place)
        if logprob is None:
            entries.token_logprobs.append(None)
            entries.top_logprobs.append(None)
            return
        top = {spelled: max(logprob.value, LEAST)}
        for best, value in logprob.top[: self._num_top]:
            top.setdefault(self._spell(best), max(value, LEAST))
        entries.token_logprobs.append(max(logprob.value, LEAST))
        entries.top_logprobs.append(top)

    def _spell(self, token_id: int) -> str:
        spelled = self._spelled.get(token_id)
        if spelled is None:
            spelled = self._spelled[token_id] = readable(self._tokenizer.spelling(token_id))
        return spelled


class Offsets:
    """Where in a text its tokens begin, in code points."""

    def __init__(self) -> None:
        self._decoder = Detokenizer()
        self._num_chars = 0

    def push(self, token: bytes) -> int:
        """The place of the character that has its first byte."""
        if not token or token[0] & 0xC0 != 0x80:
            self.end()
        place = self._num_chars
        self._num_chars += len(self._decoder.push(token))
        return place

    def end(self) -> None:
        """What comes next continues no character."""
        self._num_chars += len(self._decoder.finish())
