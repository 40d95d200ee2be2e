"""What an API makes of generation: how a body is read, and how answers look on the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from diptych.core.errors import DiptychError
from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.gateway.pipeline import Call
from diptych.gateway.tenancy.admission import Spent
from diptych.gateway.tenancy.visit import Visit
from diptych.text.pieces import Piece


class Shapes(Protocol):
    """Spells the answers of one request, streamed or whole; may keep the state of its stream."""

    @property
    def keep_alive(self) -> bytes:
        """Keeps proxies awake; no client takes it for output."""

    def no_op(self) -> bytes:
        """An event that says nothing, for clients that count events only."""

    def opening(self, answer: Answer, prompt_logprobs: Sequence[Logprob] = ()) -> bytes:
        """Before the first piece of an answer."""

    def piece(self, answer: Answer, piece: Piece) -> bytes:
        """More of an answer; empty if the client need not see it."""

    def closing(self, answer: Answer) -> bytes:
        """After the last piece of an answer, which now knows why it ended."""

    def ending(self, answers: Sequence[Answer]) -> bytes:
        """After the last answer."""

    def failing(self, error: DiptychError, request_id: str) -> bytes:
        """In the place of everything that should have come."""

    def whole(self, answers: Sequence[Answer], texts: Sequence[Sequence[Piece]]) -> bytes:
        """All answers in one body."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that was checked and encoded: one call and one answer for each choice."""

    calls: tuple[Call, ...]
    answers: tuple[Answer, ...]
    shapes: Shapes
    is_stream: bool
    user: str = ""
    choices_per_prompt: int = 1
    ignored: tuple[str, ...] = field(default=())  # fields that nobody knows
    harmless: tuple[str, ...] = ()  # fields that we know and that changed nothing

    @property
    def headers(self) -> Mapping[str, str]:
        """Names the ignored fields, so that a typing error can be found."""
        names = [name for name in self.ignored if name.isascii() and name.isprintable()]
        return {"x-ignored-params": ", ".join(names[:10])[:512]} if names else {}

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        calls = self.calls[:: self.choices_per_prompt]
        return sum(len(call.generation.prompt) for call in calls)

    @property
    def max_new(self) -> int:
        """Tokens that all answers may have together."""
        return sum(call.generation.max_new for call in self.calls)

    def spent(self) -> Spent:
        """Tokens so far."""
        firsts = self.answers[:: self.choices_per_prompt]
        return Spent(
            prompt=self.prompt_tokens,
            cached=sum(answer.cached_tokens for answer in firsts),
            completion=sum(len(answer.token_ids) for answer in self.answers),
            reasoning=sum(answer.reasoning_tokens for answer in self.answers),
        )


class Dialect(Protocol):
    """One API."""

    async def read(self, body: dict[str, Any], visit: Visit) -> Ask:
        """Check, render, tokenise, and see that it fits. No engine has been bothered yet."""
