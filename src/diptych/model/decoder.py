"""The text model: embedding, layers, final fold, head. Functions of weights, rows and memory.

    streams = M copies of the embedding; pre = (1, 0, …)
    each layer:  streams += engram                        where the layer reads an n-gram table
                 x = norm(collapse(streams, pre));  streams = expand(attention(x));  pre = next
                 x = norm(collapse(streams, pre));  streams = expand(experts(x));    pre = next
    hidden = norm(collapse(streams, pre));  logits = head hidden

`pre` always comes from the sublayer before: a sublayer's own serves the next one.

The *border* is the first layer of the decoder half, which owns the last compressed cache. What it
compresses is made from the streams that enter it, so behind it a row leaves nothing but its window
keys: rows that no later window holds may stop there (bounded replay, `Rows.kept`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model import engram, mhc, moe
from diptych.model.attention import Place, Selection, Trace, attend
from diptych.model.compressor import compress
from diptych.model.layers import ROW_GROUP, linear, rms_norm, take
from diptych.model.memory import Memory, Rows
from diptych.model.numerics import Numerics
from diptych.model.rope import frequencies, turn
from diptych.model.schedule import LayerSpec
from diptych.model.spec import ModelSpec
from diptych.model.weights import LayerWeights, Weights


@dataclass(frozen=True, slots=True)
class State:
    """What one layer hands to the next."""

    streams: Tensor  # [T, M, D]
    pre: Tensor  # [T, M]
    selection: Selection | None


def hidden(
    spec: ModelSpec,
    weights: Weights,
    numerics: Numerics,
    rows: Rows,
    memory: Memory,
    trace: Trace | None = None,
) -> Tensor:
    """The final normed state of each row [T, D]; `memory` has taken in all that rows leave behind.

    With `rows.kept` that of the kept rows [K, D]; without a kept row nothing runs behind the
    border. `trace` sees intermediate values by name and layer: streams, engram_rows, engram_gate,
    index_scores, candidates, selected, experts, expert_weights; of kept rows behind the border.
    """
    assert rows.token_ids.shape[0] % ROW_GROUP == 0, "pad a forward's rows to whole groups"
    embedded = weights.embed.index_select(0, rows.token_ids)
    first = torch.zeros(spec.streams, dtype=numerics.dtype, device=embedded.device)
    first[0] = 1
    state = State(
        streams=embedded.unsqueeze(1).repeat(1, spec.streams, 1),
        pre=first.expand(embedded.shape[0], -1),
        selection=None,
    )
    places = {ratio: place(spec, numerics, rows.positions, ratio) for ratio in _ratios(spec)}
    for layer, layer_weights in zip(spec.layers, weights.layers, strict=True):
        if layer.engram is not None:
            streams = remember(weights, layer_weights, numerics, layer, rows, state.streams, trace)
            state = State(streams, state.pre, state.selection)
        x = normed(spec, numerics, state.streams, state.pre, layer_weights.attn_norm)
        at = places[layer.ratio]
        if layer_weights.attn.compressor:
            compressor = layer_weights.attn.compressor
            compress(compressor, spec, numerics, layer, x, at.entry_turn, memory)
        if layer.index == spec.decoder_start and rows.kept is not None:
            x, state = take(x, rows.kept), narrowed(state, rows.kept)
            if not len(x):
                return x
            places = {ratio: each.narrow(rows.kept) for ratio, each in places.items()}
            at, memory = places[layer.ratio], memory.narrow(rows.kept)
        state = run_layer(layer_weights, spec, numerics, layer, x, at, memory, state, trace)
        if trace is not None:
            trace("streams", layer.index, state.streams)
    if spec.decoder_start == spec.num_layers and rows.kept is not None:
        state = narrowed(state, rows.kept)  # no layer is a border
    return normed(spec, numerics, state.streams, state.pre, weights.norm)


def narrowed(state: State, kept: Tensor) -> State:
    """The state of the kept rows, to which the border selects anew."""
    return State(take(state.streams, kept), take(state.pre, kept), selection=None)


def logits(weights: Weights, numerics: Numerics, hidden: Tensor) -> Tensor:
    """hidden [T, D] -> [T, V], in the precision of the numerics, not rounded."""
    return linear(hidden, weights.head).to(numerics.dtype)


def run_layer(
    weights: LayerWeights,
    spec: ModelSpec,
    numerics: Numerics,
    layer: LayerSpec,
    x: Tensor,
    place: Place,
    memory: Memory,
    state: State,
    trace: Trace | None,
) -> State:
    """Attention on `x`, then experts, each between a collapse and an expansion of the streams."""
    mix = mhc.mix(weights.hc_attn, spec, state.streams)
    output, selection = attend(
        weights.attn, spec, numerics, layer, x, place, memory, state.selection, trace
    )
    streams = numerics.bf16(mhc.expand(output, state.streams, mix))
    pre = mix.pre

    mix = mhc.mix(weights.hc_ffn, spec, streams)
    x = normed(spec, numerics, streams, pre, weights.ffn_norm)
    chosen, picked = moe.route(weights.moe, spec, x)
    if trace is not None:
        trace("experts", layer.index, chosen)
        trace("expert_weights", layer.index, picked)
    output = moe.mixture(weights.moe, spec, numerics, x, chosen, picked)
    return State(numerics.bf16(mhc.expand(output, streams, mix)), mix.pre, selection)


def normed(
    spec: ModelSpec, numerics: Numerics, streams: Tensor, pre: Tensor, weight: Tensor
) -> Tensor:
    """What a sublayer takes in [T, D]: the streams as one, normed."""
    x = numerics.bf16(mhc.collapse(streams, pre))
    return numerics.bf16(rms_norm(x, weight, spec.norm_eps))


def remember(
    weights: Weights,
    layer_weights: LayerWeights,
    numerics: Numerics,
    layer: LayerSpec,
    rows: Rows,
    streams: Tensor,
    trace: Trace | None,
) -> Tensor:
    """The streams with what the n-gram table holds for each row."""
    assert weights.hashing and layer_weights.engram and layer.engram is not None
    ids = weights.hashing.rows(rows.grams, layer.engram)
    looked_up = engram.look_up(layer_weights.engram, numerics, ids)
    streams, gates = engram.write(layer_weights.engram, numerics, streams, looked_up)
    if trace is not None:
        trace("engram_rows", layer.index, ids)
        trace("engram_gate", layer.index, gates)
    return streams


def place(spec: ModelSpec, numerics: Numerics, positions: Tensor, ratio: int) -> Place:
    """Angles and visibility of rows at `positions` [T] for layers of one ratio."""
    frequency = frequencies(spec.rope, compressed=ratio > 0).to(positions.device)
    visible = torch.div(positions + 1, max(ratio, 1), rounding_mode="floor")
    here = turn(frequency, positions, numerics.dtype)
    start = here if ratio < 2 else turn(frequency, positions - positions % ratio, numerics.dtype)
    return Place(here, start, visible, int(visible.max()))


def _ratios(spec: ModelSpec) -> set[int]:
    return {layer.ratio for layer in spec.layers}
