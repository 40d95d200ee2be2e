"""The definition that serves also trains: gradients are finite, complete and right."""

import re

import pytest
import torch

from diptych.model import decoder
from diptych.model.dense import DenseMemory, rows_of
from diptych.model.engram import Table
from diptych.model.inventory import inventory
from diptych.model.numerics import NUMERICS
from diptych.model.weights import assemble

BIASES = ("gate.bias", "gate.bias_vl")  # they only select; a balancing rule moves them
INDEXER = ".indexer."  # selection is discrete: an indexer learns from its scores alone


@pytest.fixture
def fresh(golden, model):
    """`fresh(mode)`: the spec, every weight by name, trainable, and a loss of them."""
    base = model("tiny-text", "exact")
    ids = golden("tiny-text/golden")["n64.input_ids"].tolist()

    def build(mode):
        numerics = NUMERICS[mode]
        stored = golden("tiny-text/model")
        params = {
            name: stored[name].to(numerics.dtype, copy=True).requires_grad_()
            for name, entry in inventory(base.spec).items()
            if entry.loaded
        }

        def loss(trace=None, floor=0, compact=False):
            weights = assemble(
                base.spec,
                params.__getitem__,
                lambda name: Table(params[name], None, numerics.dtype),
                base.weights.hashing,
            )
            floors = [floor, floor]
            rows, owners = rows_of(
                weights.hashing, [ids, ids[:21]], [0, 0], floors if compact else None
            )
            memory = DenseMemory(base.spec, numerics, 2, floors=floors)
            memory.begin(owners, rows.positions)
            out = decoder.hidden(base.spec, weights, numerics, rows, memory, trace)
            first = 0 if compact else floor
            logits = decoder.logits(weights, numerics, out)[first:][: len(ids) - 1 - floor]
            return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[floor + 1 :]))

        return params, loss

    return build


@pytest.mark.parametrize("mode", NUMERICS)
def test_every_weight_gets_a_finite_gradient(fresh, mode):
    params, loss = fresh(mode)
    chosen = {}  # experts of the rows that the loss looks at
    trace = lambda name, layer, value: chosen.update({(name, layer): value[:63]})  # noqa: E731
    loss(trace).backward()
    for name, tensor in params.items():
        expert = re.match(r"layers\.(\d+)\.ffn\.experts\.(\d+)", name)
        unused = expert and int(expert[2]) not in chosen["experts", int(expert[1])]
        if unused or name.endswith(BIASES) or INDEXER in name:
            assert tensor.grad is None or not tensor.grad.any(), name
        else:
            assert tensor.grad is not None, name
            assert tensor.grad.isfinite().all(), name
            assert tensor.grad.any(), name


@pytest.mark.parametrize("mode", ["exact", "served"])
def test_indexers_learn_from_their_traced_scores(fresh, mode):
    params, loss = fresh(mode)
    scores = []
    loss(lambda name, _, value: scores.append(value) if name == "index_scores" else None)
    sum(s[s.isfinite()].square().mean() for s in scores).backward()
    for name in (n for n in params if INDEXER in n):
        assert params[name].grad.isfinite().all(), name
        assert params[name].grad.any(), name


@pytest.mark.parametrize(
    "name",
    [
        "embed.weight",
        "layers.1.engram.embed.weight",
        "layers.1.engram.q_weight",
        "layers.2.attn.compressor.wgate.weight",
        "layers.3.attn.attn_sink",
        "layers.3.hc_attn_fn",
        "layers.4.hc_ffn_scale",
        "layers.5.attn.compressor.norm.weight",
        "layers.5.attn.wo_a.weight",
        "layers.6.ffn.gate.weight",
        "layers.7.ffn.experts.2.w3.weight",
        "norm.weight",
    ],
)
def test_gradients_agree_with_finite_differences(fresh, name, generator):
    params, loss = fresh("exact64")
    loss().backward()
    tensor = params[name]
    step = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    step = 1e-5 * step / step.norm()
    expected = (tensor.grad * step).sum() * 2
    with torch.no_grad():
        params[name] = tensor + step
        above = loss()
        params[name] = tensor - step
        below = loss()
    torch.testing.assert_close(above - below, expected, rtol=1e-4, atol=1e-13)


@pytest.mark.parametrize("mode", NUMERICS)
def test_a_forward_that_is_trained_has_the_bits_of_one_that_is_served(fresh, mode):
    _, loss = fresh(mode)
    with torch.no_grad():
        served = loss()
    assert torch.equal(loss().detach(), served)


def test_a_few_steps_of_descent_lower_the_loss(fresh):
    params, loss = fresh("served")
    before = loss()
    optimiser = torch.optim.Adam(params.values(), lr=1e-3)
    for _ in range(5):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    assert loss() < before - 0.1


def test_gradients_through_kept_rows_are_those_through_all_of_them(fresh):
    params, loss = fresh("exact64")
    loss(floor=15).backward()
    expected = {name: tensor.grad for name, tensor in params.items()}
    for tensor in params.values():
        tensor.grad = None
    loss(floor=15, compact=True).backward()
    for name, tensor in params.items():
        if expected[name] is None:
            assert tensor.grad is None or not tensor.grad.any(), name
        else:
            mine = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            torch.testing.assert_close(mine, expected[name], rtol=1e-9, atol=1e-12)
