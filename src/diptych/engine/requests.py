"""A sequence inside the engine: its tokens, its pages, how far it is, when it ends."""

from dataclasses import dataclass, field

from diptych.core.errors import BadRequest
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import PRIORITIES, Generation
from diptych.core.step import Logprob
from diptych.engine.guide import Guide
from diptych.engine.history import History
from diptych.engine.port import Pages
from diptych.engine.prefix_cache import Chain
from diptych.engine.swap import SwapCopy
from diptych.engine.tier import Owner


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the model and this engine allow a sequence to be."""

    vocab_size: int
    max_model_len: int  # tokens of a sequence, prompt and output
    eos_token_id: int


@dataclass(slots=True, eq=False)
class Request:
    """A generation under way.

    Positions [0, written) lie in its pages; [written, launched) are being computed by a step that
    was planned and has not come back. Only the ledger changes any of this, but for what the sampler
    keeps up to date: `guide` and `history` follow `tokens`, `prompt_logprobs` the rows of a prompt.
    """

    generation: Generation
    hold: bool  # stop after the first sampled token and keep the pages
    adopted: bool  # its prompt was computed elsewhere
    capacity: int  # positions it may ever write
    tokens: list[int]  # prompt and output so far; a token is here once its step has come back
    written: int = 0
    blocks: tuple[int, ...] = ()  # in order of position; replaced, never changed
    slot: int = 0
    launched: int = 0
    floor: int = 0  # R: decoder layers run on positions from here on, and see no others
    encoder_floor: int = 0  # windows of encoder layers begin here: over 0 after producer replay
    replay_end: int = 0  # positions below are in shared blocks: computed for their windows only
    last_step: int = -1  # the newest plan that touches its pages
    order: int = 0  # of arrival
    rank: int = 1  # its class, as an index into PRIORITIES; waiting makes it more urgent
    cached: int | None = None  # positions that came from the prefix cache; None: not admitted yet
    chain: Chain | None = None  # None: nothing of it is cached
    brought: dict[int, str] = field(default_factory=dict)  # blocks that came from a tier, and which
    swapped: SwapCopy | None = None  # where its bytes lie while it has no pages
    ended: bool = False  # nobody waits for its tokens any more
    dropped: bool = False  # likewise, because it was given up
    lost: int = 0  # positions that a preemption took, until it is admitted again
    suspect: bool = False  # a step broke that it was part of: it goes on alone, up to a token
    guide: Guide | None = None  # what its output must be; the sampler's, like the rest
    history: History | None = None  # counted tokens; None: nobody has asked
    prompt_logprobs: list[Logprob] | None = None  # of tokens 1, 2, …; None: nobody waits for them
    resumed: tuple[int, bytes] | None = None  # a position, and the slot as it was there

    @property
    def key(self) -> Key:
        return self.generation.key

    @property
    def owner(self) -> Owner:
        generation = self.generation
        return Owner(generation.tenant, generation.scope, generation.retention)

    @property
    def is_sampling(self) -> bool:
        """Whether a step that has not come back samples its next token."""
        return self.launched == len(self.tokens)

    @property
    def remaining(self) -> int:
        """Positions to compute before the next token can be sampled."""
        return 1 if self.is_sampling else len(self.tokens) - self.launched

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.generation.prompt)

    def pages(self, grain: int) -> Pages:
        """Where the written positions lie."""
        return Pages(self.blocks[: blocks_for(self.written, grain)], self.slot, self.written)


def blocks_for(positions: int, grain: int) -> int:
    """Blocks that hold this many positions."""
    return -(-positions // grain)


def capacity(generation: Generation, bounds: Bounds, *, hold: bool) -> int:
    """Positions that may be written before the sequence ends or is held."""
    if hold:
        return len(generation.tokens)
    return min(generation.capacity, bounds.max_model_len - 1)


def check(generation: Generation, bounds: Bounds) -> None:
    """BadRequest unless a token can be sampled after the generation's tokens."""
    tokens = generation.tokens
    if not generation.prompt:
        raise BadRequest("the prompt is empty; expected at least one token", param="prompt")
    if len(tokens) >= bounds.max_model_len:
        raise BadRequest(
            f"the prompt has {len(tokens)} tokens; expected fewer than the model's context of "
            f"{bounds.max_model_len}",
            code="context_length_exceeded",
            param="prompt",
        )
    if min(tokens) < 0 or max(tokens) >= bounds.vocab_size:
        wrong = next(t for t in tokens if not 0 <= t < bounds.vocab_size)
        raise BadRequest(
            f"token id {wrong} is outside the vocabulary; expected 0 to {bounds.vocab_size - 1}",
            param="prompt",
        )
    if generation.max_new <= len(generation.forced):
        raise BadRequest(
            f"max_new is {generation.max_new}; expected more than the "
            f"{len(generation.forced)} output tokens that exist already",
            param="max_new",
        )
    if generation.priority not in PRIORITIES:
        raise BadRequest(
            f"priority is {generation.priority!r}; expected one of {', '.join(PRIORITIES)}",
            param="priority",
        )
    generation.sampling.check()
    generation.sampling.check_ids(bounds.vocab_size)


def finish_of(request: Request, bounds: Bounds) -> tuple[Finish | None, int | None]:
    """Whether the newest token ends the sequence, and the stop token id that did."""
    sampling = request.generation.sampling
    token = request.tokens[-1]
    if token == bounds.eos_token_id and not sampling.ignore_eos:
        return Finish.STOP, None
    if token in sampling.stop_token_ids:
        return Finish.STOP, token
    if request.num_output >= request.generation.max_new:
        return Finish.LENGTH, None
    if len(request.tokens) >= bounds.max_model_len:
        return Finish.LENGTH, None
    return None, None
