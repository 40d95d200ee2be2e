"""Routed experts: kernels against the reference, over the case list the benchmark walks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from diptych.kernels import activations, nvcc
from diptych.kernels.moe import cases, launch, native, packing, plain, reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # unused rows hold garbage


def error(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


def small_settings(case: cases.Case, columns: int = 16) -> launch.Settings:
    s = launch.interpreted(launch.settings_for(case.tokens * case.slots, case.local))
    s = replace(s, small=0)
    shape = replace(s.gate_up, rows=64, columns=columns)
    return replace(s, gate_up=shape, down=shape)


@pytest.mark.parametrize("case", cases.SMALL, ids=str)
def test_kernels_match_the_reference(case: cases.Case) -> None:
    x, (ids, weights), experts = case.activations(), case.route(), case.weights()
    shared = torch.ones_like(x)
    got = launch.routed_experts(
        x,
        ids,
        weights,
        packing.pack(experts),
        shared,
        small_settings(case),
        out=torch.full_like(x, torch.nan),
    )
    want = reference.expert_pairs(x, ids, weights, experts, dtype=torch.float64).sum(1) + 1
    assert error(got, want) < 4e-3  # bfloat16 rounding of the slots and of the sum


@pytest.mark.parametrize("case", [cases.SMALL[1], cases.SMALL[4]], ids=str)
def test_the_plain_kernel_matches_the_reference(case: cases.Case) -> None:
    x, (ids, weights), experts = case.activations(), case.route(), case.weights()
    pairs = plain.expert_pairs(x, ids, weights, experts, compiled=False)
    want = reference.expert_pairs(x, ids, weights, experts, dtype=torch.float64)
    held = (ids >= experts.first) & (ids < experts.first + experts.count)
    assert error(pairs[held], want[held]) < 2.5e-2  # gate and up are rounded to bfloat16 here


def test_small_tiles_take_the_rest_of_an_expert() -> None:
    case = cases.small("rest", 40, experts=4, hot=True)
    x, (ids, weights), packed = case.activations(), case.route(), packing.pack(case.weights())
    plain_tiles = launch.routed_experts(x, ids, weights, packed, settings=small_settings(case, 32))
    settings = replace(small_settings(case, 64), small=16)
    assert torch.equal(
        launch.routed_experts(x, ids, weights, packed, settings=settings), plain_tiles
    )


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    case = cases.small("same-bits", 21, experts=4)
    x, (ids, weights), packed = case.activations(), case.route(), packing.pack(case.weights())
    full = launch.routed_experts(x, ids, weights, packed, settings=small_settings(case, 32))
    for row in (0, 7, 20):
        alone = slice(row, row + 1)
        settings = small_settings(replace(case, tokens=1))
        got = launch.routed_experts(x[alone], ids[alone], weights[alone], packed, settings=settings)
        assert torch.equal(got, full[alone])


def test_sorting_handles_many_pairs_by_counting_first() -> None:
    case = cases.small("counted", 1100)
    ids, _ = case.route()
    settings = small_settings(case)
    routing = launch.sort(ids, 0, case.experts, 16, settings)
    want = torch.argsort(ids.flatten(), stable=True).int()
    assert torch.equal(routing.order, want)
    counts = torch.bincount(ids.flatten(), minlength=case.experts)
    used = int(routing.tiles[0, 0])
    assert used == int(((counts + 15) // 16).sum()) <= routing.bound
    assert int(routing.tiles[1 : 1 + used, 2].sum()) == ids.numel()


def test_equal_tiles_take_all_of_an_expert() -> None:
    case = cases.small("equal", 350, experts=3, slots=2, hot=True)
    ids, _ = case.route()
    settings = replace(small_settings(case), native=True)
    routing = launch.sort(ids, 0, case.experts, native.PLACES, settings)
    used = int(routing.tiles[0, 0])
    tiles = routing.tiles[1 : 1 + used]
    places = torch.cat([torch.arange(first, first + count) for _, first, count, _ in tiles])
    assert torch.equal(places, torch.arange(ids.numel()))
    for expert in range(case.experts):
        sizes = tiles[tiles[:, 0] == expert, 2]
        assert len(sizes) == -(-int((ids == expert).sum()) // native.PLACES) > 1
        assert int(sizes.max()) <= native.PLACES
        assert int(sizes.max() - sizes.min()) < 8 * len(sizes)


def test_compiled_products_run_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = packing.pack(cases.SMALL[0].weights())
    assert not launch.choose(2, packed).native  # the weights are not on a GPU
    monkeypatch.setattr(native, "takes", lambda _: True)
    few, some, many = (launch.choose(pairs, packed) for pairs in (2, 100, 8 * 200))
    assert few.native and few.direct
    assert not some.native
    assert many.native and not many.direct
    assert not launch.choose(0, packed).native


def test_without_a_compiler_the_triton_products_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(nvcc.shutil, "which", lambda _: None)
    native.library.cache_clear()
    native.is_available.cache_clear()
    try:
        assert not native.is_available()
        assert not native.is_available()
    finally:
        native.is_available.cache_clear()
    assert caplog.text.count("no nvcc on PATH") == 1


def test_packing_refuses_rows_that_span_too_many_binades() -> None:
    case = cases.small("wide", 1)
    experts = case.weights()
    experts.s2[0, 3, 0] = experts.s2[0, 3].amax() - 12
    assert packing.wide_rows(experts.w2[0], experts.s2[0]) == 1
    with pytest.raises(ValueError, match="1 rows span"):
        packing.pack(experts)


def test_packing_refuses_sizes_that_do_not_tile() -> None:
    with pytest.raises(ValueError, match="k % 128"):
        packing.pack_product(
            torch.zeros(16, 32, dtype=torch.uint8), torch.zeros(16, 2, dtype=torch.uint8)
        )


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*cases.RELEASED[:5], *cases.SHARDS], ids=str)
def test_kernels_match_at_released_sizes(case: cases.Case) -> None:
    device = "cuda"
    x, (ids, weights) = case.activations(device), case.route(device)
    experts = case.weights(device)
    packed = packing.pack(experts)
    row = slice(case.tokens // 2, case.tokens // 2 + 1)
    out = torch.full_like(x, torch.nan)
    got = launch.routed_experts(x, ids, weights, packed, out=out)
    want = reference.expert_pairs(x, ids, weights, experts).sum(1)
    exact = reference.expert_pairs(x, ids, weights, experts, rounded=False).sum(1)
    # FP8 accumulation (14 bits) moves u by 1e-3, and rounding u to FP8 turns that into 1e-2
    assert error(got, want) < 2e-2
    # against unquantised activations the kernel is as good as the reference that quantises
    assert error(got, exact) < 1.05 * error(want, exact)
    alone = launch.routed_experts(x[row], ids[row], weights[row], packed)
    assert torch.equal(alone, got[row])


COMPILED = [
    *(cases.RELEASED[i] for i in (0, 1, 6)),
    *cases.SHARDS,
    cases.Case("shard-of-48-few-tokens", 4, first=96, held=48),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiled_products_write_the_bits_of_the_triton_kernels(case: cases.Case) -> None:
    device = "cuda"
    x, (ids, weights) = case.activations(device), case.route(device)
    packed = packing.pack(case.weights(device))
    settings = launch.settings_for(ids.numel(), packed.count)
    want = launch.routed_experts(x, ids, weights, packed, settings=settings)
    for direct in (False, True) if case.tokens < 8 else (False,):
        compiled = replace(settings, native=True, direct=direct)
        for _ in range(3):
            out = torch.full_like(x, torch.nan)
            launch.routed_experts(x, ids, weights, packed, settings=compiled, out=out)
            assert torch.equal(out, want)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [2304, 5120, 1024])
def test_compiled_quantising_writes_the_bits_of_the_triton_kernel(width: int) -> None:
    case = cases.Case(f"quantise-{width}", 101, hidden=width, outlier=1000.0)
    x = case.activations("cuda")
    x[3] = 0
    x[4:20] *= torch.logspace(-8, 2, 16, device="cuda").bfloat16()[:, None]
    x[20:40, ::2] *= 1e-6
    (got, scale), (want, want_scale) = native.quantise(x), activations.quantise(x, True)
    assert torch.equal(scale, want_scale)
    words = want.view(torch.int32).view(101, -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
    want = words.contiguous().view(torch.float8_e4m3fn).view(101, width)
    assert torch.equal(got.float(), want.float())  # a zero may have the other sign
