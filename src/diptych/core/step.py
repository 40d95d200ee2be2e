"""What comes out of one engine step."""

from dataclasses import dataclass

from diptych.core.ids import Key
from diptych.core.phases import Finish


@dataclass(frozen=True, slots=True)
class Logprob:
    """How probable the model found a token, before any sampling parameter had a say."""

    value: float  # natural logarithm
    rank: int  # 1: the most probable; of equal ones the lowest id is first
    top: tuple[tuple[int, float], ...] = ()  # the most probable tokens and theirs, in this order


@dataclass(frozen=True, slots=True)
class Row:
    """New tokens of one sequence, and its end if it ended."""

    key: Key
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None
    cached_tokens: int = 0  # with the first token: prompt positions that were not computed again
    stop_token: int | None = None  # the stop token id that ended it; None for end-of-sequence
    message: str = ""  # why, when finish is ERROR
    is_contradiction: bool = False  # likewise: what the caller asked for leaves no token
    logprobs: tuple[Logprob, ...] = ()  # one for each token, if the request asks for them
    # with the first token: those of the prompt but for its first, if the request asks for them
    prompt_logprobs: tuple[Logprob, ...] = ()
    cached_memory: int = (
        0  # of cached_tokens: brought from the cache tier's memory for this request
    )
    cached_disk: int = 0  # likewise, from its disk


@dataclass(frozen=True, slots=True)
class Chunk:
    """Progress of a prompt."""

    key: Key
    tokens: int  # positions computed so far
    last_chunk_started: bool


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything one step has to say. `step` counts from 0."""

    step: int
    rows: tuple[Row, ...] = ()
    chunks: tuple[Chunk, ...] = ()
