"""What a model keeps for a sequence, as a layout table: which sections, where, how large."""

from math import lcm

from diptych.core.errors import Misconfigured
from diptych.core.layout import Kind, Layout, Pool, Section, make_layout, ring_size
from diptych.model.numerics import Numerics
from diptych.model.records import Records
from diptych.model.spec import ModelSpec

GRAIN_MULTIPLE = 8  # candidate blocks must not straddle a page


def arrange(spec: ModelSpec, numerics: Numerics, block_tokens: int) -> Layout:
    """The layout table. Windows come first in a slot, those of the encoder before all others."""
    step = lcm(GRAIN_MULTIPLE, spec.candidate_block_size, *(s.ratio for s in spec.kv_sources))
    if block_tokens < 1 or block_tokens % step:
        raise Misconfigured(f"--block-tokens is {block_tokens}; expected a multiple of {step}")
    records = Records.of(spec, numerics)
    ring = ring_size(spec.window, spec.draft_tokens)
    sections = [
        *_windows(spec, records, ring),
        *_carries(spec, records),
        *_compressed(spec, records, block_tokens),
    ]
    return make_layout(
        sections, grain=block_tokens, ring=ring, numerics=numerics.name, window=spec.window
    )


def _windows(spec: ModelSpec, records: Records, ring: int) -> list[Section]:
    """A ring for every layer, draft layers behind the others."""
    (size,) = records.window.section_bytes
    drafts = spec.dspark.layers if spec.dspark else 0
    return [
        Section(Pool.SLOT, layer, Kind.WINDOW, size, ring, dropped=layer >= spec.decoder_start)
        for layer in range(spec.num_layers + drafts)
    ]


def _carries(spec: ModelSpec, records: Records) -> list[Section]:
    """Compressor inputs of the tokens that a group may still need, drafts included."""
    (size,) = records.carry.section_bytes
    return [
        Section(
            Pool.SLOT,
            source.index,
            Kind.CARRY,
            size,
            source.ratio + spec.draft_tokens,
            source.ratio,
            dropped=True,
        )
        for source in spec.kv_sources
        if source.ratio > 1
    ]


def _compressed(spec: ModelSpec, records: Records, grain: int) -> list[Section]:
    """Entries and index keys of every layer that owns a compressed cache."""
    (entry,) = records.entry.section_bytes
    kinds = zip((Kind.INDEX, Kind.INDEX_SCALE), records.index_key.section_bytes, strict=False)
    sizes = [(Kind.ENTRY, entry), *kinds]  # unrounded index keys have no scales
    return [
        Section(Pool.BLOCK, s.index, kind, size, grain // s.ratio, s.ratio)
        for s in spec.kv_sources
        for kind, size in sizes
    ]
