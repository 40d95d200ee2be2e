"""Log-probabilities as a client reads them: one entry for each token whose text it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.text.pieces import Piece, Section, Text
from diptych.text.tokenizer import Tokenizer

LEAST = -9999.0  # instead of minus infinity, which JSON lacks

Entries = dict[Section, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Spells the entries of one request."""

    tokenizer: Tokenizer

    def entries(self, answer: Answer, pieces: Sequence[Piece]) -> Entries:
        """Of the tokens that begin in some pieces."""
        found: Entries = {section: [] for section in Section}
        for piece in pieces:
            if not isinstance(piece, Text):
                continue
            for index in piece.tokens:
                token_id, logprob = answer.token_ids[index], answer.logprobs[index]
                found[piece.section].append(self._entry(token_id, logprob))
        return found

    def _entry(self, token_id: int, logprob: Logprob) -> dict[str, Any]:
        top = [self._value(best, value) for best, value in logprob.top]
        return self._value(token_id, logprob.value) | {"top_logprobs": top}

    def _value(self, token_id: int, value: float) -> dict[str, Any]:
        data = self.tokenizer.spelling(token_id)
        return {"token": readable(data), "logprob": max(value, LEAST), "bytes": list(data)}


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Spells those of one prompt."""

    tokenizer: Tokenizer
    token_ids: tuple[int, ...]

    def shape(self, found: Sequence[Logprob]) -> list[dict[str, Any] | None]:
        """One mapping by token id for each token, its own entry first; null for the first one."""
        tokens = zip(self.token_ids[1:], found, strict=True)
        return [None, *(self._alternatives(token_id, logprob) for token_id, logprob in tokens)]

    def _alternatives(self, token_id: int, logprob: Logprob) -> dict[str, Any]:
        values = {token_id: (logprob.rank, logprob.value)}
        for rank, (best, value) in enumerate(logprob.top, 1):
            values.setdefault(best, (rank, value))
        return {
            str(each): {
                "logprob": max(value, LEAST),
                "rank": rank,
                "decoded_token": readable(self.tokenizer.spelling(each)),
            }
            for each, (rank, value) in values.items()
        }


def shape(entries: Entries, *, has_reasoning: bool) -> dict[str, Any]:
    """The field `logprobs` of a choice."""
    reasoning = {"reasoning_content": entries[Section.REASONING]} if has_reasoning else {}
    return {"content": entries[Section.CONTENT], "refusal": None, **reasoning}


def readable(data: bytes) -> str:
    """Text; what is no UTF-8 by itself is written byte by byte."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)
