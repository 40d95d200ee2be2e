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
from diptych.engine.anchors import AnchorPool
from diptych.engine.arenas import Arenas
from diptych.engine.arrangement import arrange
from diptych.engine.block_pool import BlockPool
from diptych.engine.device import DeviceThread
from diptych.engine.guides import Guides
from diptych.engine.ledger import Ledger
from diptych.engine.loading import Rates
from diptych.engine.loop import Engine
from diptych.engine.options import Options, Sizes
from diptych.engine.pace import Pace
from diptych.engine.requests import Bounds, blocks_for
from diptych.engine.runner import Runner, Step
from diptych.engine.sampler import Sampler
from diptych.engine.scheduler import Limits
from diptych.engine.slots import SlotPool
from diptych.engine.stepper import Stepper
from diptych.engine.swap import SwapSpace
from diptych.engine.tier import OpenTier
from diptych.engine.tiering import Loaded
from diptych.engine.trace import Observer
from diptych.engine.unsaid import unsaid
from diptych.model import manifest, weights
from diptych.model.ngrams import TOKENIZER_FILE
from diptych.model.numerics import NUMERICS
from diptych.model.spec import ModelSpec
from diptych.text.constraints.vocabulary import Vocabulary, read_vocabulary

DEFAULT_OPTIONS = Options()

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine without a thread."""

    spec: ModelSpec
    namespace: bytes
    arenas: Arenas
    ledger: Ledger
    runner: Runner
    stepper: Stepper[Step]
    vocabulary: Vocabulary

    @property
    def layout(self) -> Layout:
        return self.arenas.layout


def build_engine(
    checkpoint: Path,
    *,
    model_name: str,
    on_step: Callable[[StepOutput], None],
    loop: asyncio.AbstractEventLoop,
    options: Options = DEFAULT_OPTIONS,
    observer: Observer | None = None,
    open_tier: OpenTier | None = None,
    on_grammar: Callable[[float], None] = lambda took_s: None,
    on_load: Callable[[Loaded], None] = lambda loaded: None,
) -> Engine:
    """A running engine. Loading takes seconds: call it before serving, or on a thread."""
    rates = Rates()
    if open_tier is not None:
        observer = Pace(rates, observer)
    parts = build_parts(
        checkpoint,
        model_name=model_name,
        options=options,
        observer=observer,
        tiered=open_tier is not None,
    )
    tier = open_tier(parts.namespace, parts.layout.digest) if open_tier else None
    engine = Engine(
        parts.stepper,
        parts.arenas,
        layout=parts.layout,
        namespace=parts.namespace,
        on_step=on_step,
        loop=loop,
        tier=tier,
        rates=rates,
        on_load=on_load,
        guides=Guides(parts.vocabulary, on_grammar),
    )
    engine.start()
    return engine


def build_parts(
    checkpoint: Path,
    *,
    model_name: str,
    options: Options = DEFAULT_OPTIONS,
    observer: Observer | None = None,
    tiered: bool = False,
) -> Parts:
    """Load the model and lay out its memory; Misconfigured names the flag or file that is wrong."""
    options.check()
    spec = ModelSpec.load(checkpoint)
    mode = NUMERICS[options.numerics]
    layout = arrange(spec, mode, options.block_tokens)
    sizes = Sizes.of(options, spec, layout)
    digest = manifest.verify(checkpoint)
    loaded = weights.load(checkpoint, spec, mode)
    arenas = Arenas(
        layout,
        sizes.num_blocks,
        sizes.num_slots,
        sizes.num_anchors,
        sizes.num_host_blocks,
        sizes.num_host_slots,
    )
    tokenizer = _tokenizer(checkpoint)
    vocabulary = read_vocabulary(tokenizer, spec.vocab_size, [spec.eos_token_id])
    never = () if options.placeholders else unsaid(vocabulary, spec)
    sampler = Sampler(spec.eos_token_id, never)
    runner = Runner(spec, loaded, mode, arenas, sampler, compact=options.replay == "compact")
    namespace = blocks.namespace(
        model=model_name,
        weights=digest,
        tokenizer=hashlib.blake2b(tokenizer, digest_size=blocks.HASH_BYTES).digest(),
        layout=layout.digest,
        grain=options.block_tokens,
        numerics=options.numerics,
    )
    _log(model_name, options, sizes, layout)
    ledger = _ledger(spec, options, sizes, tiered)
    device = DeviceThread() if options.async_stepping else None
    stepper = Stepper(ledger, runner, device, observer)
    return Parts(spec, namespace, arenas, ledger, runner, stepper, vocabulary)


def _ledger(spec: ModelSpec, options: Options, sizes: Sizes, tiered: bool) -> Ledger:
    return Ledger(
        Bounds(spec.vocab_size, sizes.max_model_len, spec.eos_token_id),
        Limits(
            options.block_tokens,
            options.max_batch_tokens,
            window=spec.window,
            replay=options.replay != "off",
            deterministic=options.deterministic,
            tiered=tiered,
            snapshot_every=options.block_tokens
            * blocks_for(options.snapshot_tokens, options.block_tokens),
        ),
        BlockPool(sizes.num_blocks),
        SlotPool(sizes.num_slots),
        AnchorPool(sizes.num_anchors),
        SwapSpace(sizes.num_host_blocks, sizes.num_host_slots),
    )


def _log(model_name: str, options: Options, sizes: Sizes, layout: Layout) -> None:
    logger.info(
        "engine built model=%s numerics=%s replay=%s deterministic=%s async_stepping=%s "
        "max_model_len=%d",
        model_name,
        options.numerics,
        options.replay,
        options.deterministic,
        options.async_stepping,
        sizes.max_model_len,
    )
    for line in sizes.budget(layout):
        logger.info(
            "memory %-14s pages=%-6d page_bytes=%-8d mib=%.1f",
            line.name,
            line.pages,
            line.page_bytes,
            line.mib,
        )


def _tokenizer(checkpoint: Path) -> bytes:
    path = Path(checkpoint) / TOKENIZER_FILE
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from error
