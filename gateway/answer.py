"""One choice under way: tokens in, text out, and the count of both."""

from collections import Counter
from typing import Literal

from diptych.core.phases import Finish
from diptych.core.step import Logprob
from diptych.gateway.events import Emit, End
from diptych.text.parser import Parser
from diptych.text.pieces import Piece, joined

FinishReason = Literal["stop", "length", "tool_calls"]


class Answer:
    """Feed it every Emit, then `finish` it once."""

    def __init__(
        self,
        index: int,
        parser: Parser,
        *,
        is_scored_only: bool = False,
        withholds: bool = False,
    ) -> None:
        """`is_scored_only`: the prompt is what matters; nothing sampled is shown or counted.

        `withholds`: reasoning is shown at once when it ends.
        """
        self.index = index
        self._withheld: list[Piece] | None = [] if withholds else None
        self._is_scored_only = is_scored_only
        self._parser = parser
        self.token_ids: list[int] = []  # sampled, up to the one that completed a stop string
        self.logprobs: list[Logprob] = []  # one for each of them, if asked for
        self.prompt_logprobs: tuple[Logprob, ...] = ()  # of all but its first token, if asked for
        self.cached_tokens = 0
        self.cached_memory = 0  # of these: brought from the cache tier's memory
        self.cached_disk = 0  # likewise, from its disk
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._told = 0  # token ids that have left with some chunk

    @property
    def is_over(self) -> bool:
        """Nothing that comes after can be shown."""
        return self._parser.is_over

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def parsed(self) -> Counter[str]:
        """Calls that are complete (`ok`), and what was odd."""
        return Counter(ok=self._parser.num_calls) + Counter(
            {oddity.value: number for oddity, number in self._parser.oddities.items()}
        )

    def take_ids(self) -> list[int]:
        """Token ids that no earlier chunk has told."""
        told, self._told = self._told, len(self.token_ids)
        return self.token_ids[told:]

    def push(self, emit: Emit) -> list[Piece]:
        """Text that an engine step made certain: at most one piece a section."""
        self.cached_tokens = emit.cached_tokens
        self.cached_memory, self.cached_disk = emit.cached_memory, emit.cached_disk
        self.prompt_logprobs += emit.prompt_logprobs
        if self._is_scored_only:
            return []
        pieces: list[Piece] = []
        for index, token_id in enumerate(emit.token_ids):
            if self.is_over:
                break
            self.token_ids.append(token_id)
            self.logprobs += emit.logprobs[index : index + 1]
            if token_id != emit.stop_token:
                pieces += self._parser.push(token_id)
        self._trim()
        return self._released(pieces, is_last=False)

    def finish(self, end: End | None, cached_tokens: int) -> list[Piece]:
        """Text still held. `end` is the engine's; None when a stop string or role came first."""
        is_cut = end is not None and end.finish is Finish.LENGTH and not self.is_over
        self.cached_tokens = cached_tokens
        if self._is_scored_only:
            self.finish_reason = "length"  # as asked, whatever the engine sampled
            return []
        pieces = self._parser.finish(cut=is_cut)
        self._trim()
        self.finish_reason = self._reason(is_cut=is_cut and not self.is_over)
        self.stop_reason = self._parser.stop or (end.stop_token if end else None)
        return self._released(pieces, is_last=True)

    def _released(self, pieces: list[Piece], *, is_last: bool) -> list[Piece]:
        if self._withheld is None:
            return joined(pieces)
        self._withheld += pieces
        if self._parser.is_reasoning and not is_last:
            return []
        released, self._withheld = self._withheld, None
        return joined(released)

    def _reason(self, *, is_cut: bool) -> FinishReason:
        """Calls count if they are complete and the model ended by itself."""
        if is_cut:
            return "length"
        return "tool_calls" if self._parser.num_calls else "stop"

    def _trim(self) -> None:
        """Drop the tokens after the one that completed the stop string."""
        if self._parser.surplus_tokens:
            used = len(self._parser.sections) - self._parser.surplus_tokens
            del self.token_ids[used:], self.logprobs[used:]
