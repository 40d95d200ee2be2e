"""Cache records: golden bytes, sizes, and what a reader gets back."""

import dataclasses

import pytest
import torch

from diptych.model.numerics import NUMERICS
from diptych.model.records import Records
from diptych.model.spec import ModelSpec

KINDS = ["window", "entry", "index_key", "carry"]


@pytest.fixture
def released(model) -> ModelSpec:
    """The released record widths."""
    return dataclasses.replace(model("tiny-text", "exact").spec, head_dim=512, index_head_dim=128)


def test_released_records_have_their_published_sizes(released):
    records = Records.of(released, NUMERICS["served"])
    assert records.window.section_bytes == (528,)
    assert records.entry.section_bytes == (288,)
    assert records.index_key.section_bytes == (64, 4)
    assert records.carry.section_bytes == (4096,)
    wide = Records.of(dataclasses.replace(released, fp4_entries=False), NUMERICS["served"])
    assert wide.entry.section_bytes == (528,)


def test_released_records_have_golden_bytes(golden, released):
    g = golden("ops/kv_cache")
    records = Records.of(released, NUMERICS["cache"])
    main, index = g["main_input"], g["index_input"]
    assert torch.equal(records.window.encode(main)[0], g["swa_fp8_entries"])
    assert torch.equal(records.window.round(main), g["swa_fp8_dequant"])
    assert torch.equal(records.entry.encode(main)[0], g["main_fp4_entries"])
    assert torch.equal(records.entry.decode(g["main_fp4_entries"]), g["main_fp4_dequant"])
    data, scales = records.index_key.encode(index)
    assert torch.equal(data, g["index_fp4_data"])
    assert torch.equal(scales, g["index_fp4_scales"])
    assert torch.equal(records.index_key.decode(data, scales), g["index_fp4_dequant"])


def test_a_published_vector_has_its_bytes(released):
    records = Records.of(released, NUMERICS["served"])
    values = [(37 * i % 101 - 50) / 16 * 2.0 ** (i // 16 % 5 - 2) for i in range(512)]
    v = torch.tensor(values).to(torch.bfloat16).float()
    window, entry = records.window.encode(v)[0], records.entry.encode(v)[0]
    index = torch.cat(records.index_key.encode(v[:128]))
    assert bytes(window[:12].tolist()).hex() == "f4e56cf2d470ef5e73ea68f4"
    assert bytes(window[512:518].tolist()).hex() == "77797a787a77"
    assert bytes(entry[:12].tolist()).hex() == "bfe5692ec7f45a0ed6724caf"
    assert bytes(entry[256:262].tolist()).hex() == "202830384020"
    assert bytes(index[:12].tolist()).hex() == "9ba2280a93b1290ab4512a9d"
    assert bytes(index[64:].tolist()).hex() == "7e80817e"
    assert [int(t.sum()) for t in (window, entry, index)] == [89089, 39147, 7585]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", NUMERICS)
def test_a_reader_gets_the_rounded_value_bit_for_bit(model, mode, kind, generator):
    form = getattr(Records.of(model("tiny-text", "exact").spec, NUMERICS[mode]), kind)
    x = torch.randn(33, 5, form.width, generator=generator, dtype=NUMERICS[mode].dtype)
    sections = form.encode(x)
    assert tuple(s.shape[-1] for s in sections) == form.section_bytes
    assert all(s.dtype == torch.uint8 for s in sections)
    decoded = form.decode(*sections)
    assert decoded.dtype == NUMERICS[mode].dtype
    assert torch.equal(decoded, form.round(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", NUMERICS)
def test_zero_bytes_read_as_zeros(model, mode, kind):
    form = getattr(Records.of(model("tiny-text", "exact").spec, NUMERICS[mode]), kind)
    zeros = [torch.zeros(3, size, dtype=torch.uint8) for size in form.section_bytes]
    assert not form.decode(*zeros).any()
