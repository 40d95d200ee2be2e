"""From a checkpoint folder and a few sizes to an engine. The only place where its parts meet."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diptych.core import blocks
from diptych.core.errors import Misconfigured
from diptych.core.layout import Layout
from diptych.core.step import StepOutput
from diptych.engine.arenas import Arenas
from diptych.engine.arrangement import arrange
from diptych.engine.block_pool import BlockPool
from diptych.engine.device import DeviceThread
from diptych.engine.ledger import Ledger
from diptych.engine.loop import Engine
from diptych.engine.requests import Bounds, blocks_for
from diptych.engine.runner import Runner, Step
from diptych.engine.scheduler import Limits
from diptych.engine.slots import SlotPool
from diptych.engine.stepper import Stepper
from diptych.model import weights
from diptych.model.checkpoint import manifest_digest
from diptych.model.ngrams import TOKENIZER_FILE
from diptych.model.numerics import NUMERICS
from diptych.model.spec import ModelSpec

USUAL_TOKENS = 1024  # by default there are blocks for max_num_seqs sequences of this length

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine without a thread."""

    spec: ModelSpec
    namespace: bytes
    arenas: Arenas
    ledger: Ledger
    runner: Runner

    @property
    def layout(self) -> Layout:
        return self.arenas.layout

    def stepper(self, async_stepping: bool) -> Stepper[Step]:
        """Steps that overlap on a device thread, or one after the other on the caller's."""
        return Stepper(self.ledger, self.runner, DeviceThread() if async_stepping else None)


def build_engine(
    checkpoint: Path,
    *,
    model_name: str,
    on_step: Callable[[StepOutput], None],
    loop: asyncio.AbstractEventLoop,
    numerics: str = "served",
    block_tokens: int = 128,
    max_model_len: int | None = None,
    num_blocks: int | None = None,
    max_num_seqs: int = 64,
    max_batch_tokens: int = 512,
    async_stepping: bool = False,
) -> Engine:
    """A running engine. Loading takes seconds: call it before serving, or on a thread."""
    parts = build_parts(
        checkpoint,
        model_name=model_name,
        numerics=numerics,
        block_tokens=block_tokens,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_batch_tokens,
    )
    engine = Engine(
        parts.stepper(async_stepping),
        parts.arenas,
        layout=parts.layout,
        namespace=parts.namespace,
        on_step=on_step,
        loop=loop,
    )
    engine.start()
    return engine


def build_parts(
    checkpoint: Path,
    *,
    model_name: str,
    numerics: str = "served",
    block_tokens: int = 128,
    max_model_len: int | None = None,
    num_blocks: int | None = None,
    max_num_seqs: int = 64,
    max_batch_tokens: int = 512,
) -> Parts:
    """Load the model and lay out its memory; Misconfigured names the flag or file that is wrong."""
    mode = NUMERICS.get(numerics)
    if mode is None:
        raise Misconfigured(f"--numerics is {numerics!r}; expected one of {', '.join(NUMERICS)}")
    spec = ModelSpec.load(checkpoint)
    length = _model_len(spec, max_model_len)
    layout = arrange(spec, mode, block_tokens)
    _check_step(max_num_seqs, max_batch_tokens)
    pages = _num_blocks(num_blocks, length, block_tokens, max_num_seqs)
    loaded = weights.load(checkpoint, spec, mode)
    namespace = blocks.namespace(
        model=model_name,
        weights=manifest_digest(checkpoint),
        tokenizer=_tokenizer_digest(checkpoint),
        layout=layout.digest,
        grain=block_tokens,
        numerics=numerics,
    )
    arenas = Arenas(layout, pages, max_num_seqs)
    ledger = Ledger(
        Bounds(spec.vocab_size, length, spec.eos_token_id),
        Limits(block_tokens, max_batch_tokens),
        BlockPool(pages),
        SlotPool(max_num_seqs),
    )
    logger.info(
        "engine built model=%s numerics=%s max_model_len=%d num_blocks=%d block_bytes=%d "
        "num_slots=%d slot_bytes=%d",
        model_name,
        numerics,
        length,
        pages,
        layout.block_bytes,
        max_num_seqs,
        layout.slot_bytes,
    )
    return Parts(spec, namespace, arenas, ledger, Runner(spec, loaded, mode, arenas))


def _model_len(spec: ModelSpec, asked: int | None) -> int:
    if asked is None:
        return spec.max_positions
    if not 2 <= asked <= spec.max_positions:
        raise Misconfigured(
            f"--max-model-len is {asked}; expected 2 to {spec.max_positions}, "
            "the checkpoint's max_position_embeddings"
        )
    return asked


def _check_step(max_num_seqs: int, max_batch_tokens: int) -> None:
    if max_num_seqs < 1:
        raise Misconfigured(f"--max-num-seqs is {max_num_seqs}; expected at least 1")
    if max_batch_tokens < max_num_seqs:
        raise Misconfigured(
            f"--max-batch-tokens is {max_batch_tokens}; expected at least --max-num-seqs, "
            f"{max_num_seqs}: every running sequence takes a row of a step"
        )


def _num_blocks(asked: int | None, length: int, grain: int, max_num_seqs: int) -> int:
    """Blocks of the pool: as asked, or for one sequence of full length and many of usual length."""
    longest = blocks_for(length - 1, grain)
    if asked is None:
        return max(longest, max_num_seqs * blocks_for(min(length, USUAL_TOKENS), grain))
    if asked < longest:
        raise Misconfigured(
            f"--num-blocks is {asked}; expected at least {longest}, which one sequence of "
            f"--max-model-len {length} takes"
        )
    return asked


def _tokenizer_digest(checkpoint: Path) -> bytes:
    path = Path(checkpoint) / TOKENIZER_FILE
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=blocks.HASH_BYTES).digest()
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from error
