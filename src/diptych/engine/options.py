"""What an engine can be told, and the sizes that follow from it.

`deterministic` adds one rule to what holds in every mode (docs/determinism.md): a cached prefix is
adopted up to its last anchor only. `async_stepping` is off by default: on the CPU the model is
itself a thread of Python, and a step that overlaps cost up to 11 % more than it hid.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Self

from diptych.config import WorkerSettings
from diptych.core.errors import Misconfigured
from diptych.core.layout import Layout
from diptych.engine.requests import blocks_for
from diptych.engine.swap import host_pages
from diptych.model.numerics import NUMERICS
from diptych.model.spec import ModelSpec

REPLAYS = ("off", "mask", "compact")

USUAL_TOKENS = 1024  # by default there are blocks for max_num_seqs sequences of this length
ANCHORS_PER_SEQUENCE = 2  # by default: where its prompt ended, and where its answer did
SWAP_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Options:
    """All that can be chosen about an engine. None: by the rule beside its flag."""

    numerics: str = "served"
    replay: str = "compact"
    deterministic: bool = True
    async_stepping: bool = False
    block_tokens: int = 128
    max_model_len: int | None = None  # what the checkpoint says
    max_num_seqs: int = 64
    max_batch_tokens: int = 512
    num_blocks: int | None = None  # one sequence of full length, or all of usual length
    num_anchors: int | None = None  # ANCHORS_PER_SEQUENCE
    swap_bytes: int = SWAP_BYTES
    snapshot_tokens: int = 512  # of output between copies of a slot for the tier; 0: none
    placeholders: bool = False  # may be sampled, as in golden data; never where text is served

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """Those of a worker."""
        return cls(
            numerics=settings.numerics,
            replay=settings.replay,
            deterministic=settings.deterministic,
            async_stepping=settings.async_stepping,
            block_tokens=settings.block_tokens,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            num_blocks=settings.num_blocks,
            num_anchors=settings.num_anchors,
            swap_bytes=settings.swap_bytes,
            snapshot_tokens=settings.snapshot_tokens,
        )

    def check(self) -> None:
        """Misconfigured names the flag that cannot be, whatever the checkpoint."""
        _expect_one_of("--numerics", self.numerics, NUMERICS)
        _expect_one_of("--replay", self.replay, REPLAYS)
        _expect_at_least("--max-num-seqs", self.max_num_seqs, 1)
        _expect_at_least("--num-anchors", self.num_anchors or 0, 0)
        _expect_at_least("--swap-bytes", self.swap_bytes, 0)
        _expect_at_least("--snapshot-tokens", self.snapshot_tokens, 0)
        if self.max_batch_tokens < self.max_num_seqs:
            raise Misconfigured(
                f"--max-batch-tokens is {self.max_batch_tokens}; expected at least "
                f"--max-num-seqs, {self.max_num_seqs}: every running sequence takes a row of a step"
            )


@dataclass(frozen=True, slots=True)
class Budget:
    """One arena: so many pages of so many bytes."""

    name: str
    pages: int
    page_bytes: int

    @property
    def mib(self) -> float:
        return self.pages * self.page_bytes / 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """Pages of an engine, and the longest sequence."""

    max_model_len: int
    num_blocks: int
    num_slots: int
    num_anchors: int
    num_host_blocks: int
    num_host_slots: int

    @classmethod
    def of(cls, options: Options, spec: ModelSpec, layout: Layout) -> Self:
        """Misconfigured names the flag that does not suit the checkpoint."""
        length = _model_len(spec, options.max_model_len)
        num_blocks, num_slots = _num_blocks(options, length), options.max_num_seqs
        host = host_pages(
            options.swap_bytes, layout.block_bytes, layout.slot_bytes, num_blocks, num_slots
        )
        num_anchors = options.num_anchors
        if num_anchors is None:
            num_anchors = ANCHORS_PER_SEQUENCE * num_slots
        return cls(length, num_blocks, num_slots, num_anchors, *host)

    def budget(self, layout: Layout) -> Iterator[Budget]:
        """The memory they may take. Pages take none until they are first written."""
        yield Budget("blocks", self.num_blocks, layout.block_bytes)
        yield Budget("slots", self.num_slots, layout.slot_bytes)
        yield Budget("anchors", self.num_anchors, layout.anchor_bytes)
        yield Budget("swapped blocks", self.num_host_blocks, layout.block_bytes)
        yield Budget("swapped slots", self.num_host_slots, layout.slot_bytes)


def _model_len(spec: ModelSpec, asked: int | None) -> int:
    if asked is None:
        return spec.max_positions
    if not 2 <= asked <= spec.max_positions:
        raise Misconfigured(
            f"--max-model-len is {asked}; expected 2 to {spec.max_positions}, "
            "the checkpoint's max_position_embeddings"
        )
    return asked


def _num_blocks(options: Options, length: int) -> int:
    asked, grain = options.num_blocks, options.block_tokens
    longest = blocks_for(length - 1, grain)
    if asked is None:
        return max(longest, options.max_num_seqs * blocks_for(min(length, USUAL_TOKENS), grain))
    if asked < longest:
        raise Misconfigured(
            f"--num-blocks is {asked}; expected at least {longest}, which one sequence of "
            f"--max-model-len {length} takes"
        )
    return asked


def _expect_one_of(flag: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise Misconfigured(f"{flag} is {value!r}; expected one of {', '.join(known)}")


def _expect_at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        raise Misconfigured(f"{flag} is {value}; expected at least {least}")
