"""The four modes, and which of the three roundings each applies."""

import pytest
import torch

from diptych.model.numerics import NUMERICS


@pytest.mark.parametrize(
    ("mode", "dtype", "records", "activations"),
    [
        ("exact", torch.float32, False, False),
        ("exact64", torch.float64, False, False),
        ("cache", torch.float32, True, False),
        ("served", torch.float32, True, True),
    ],
)
def test_a_mode_rounds_what_its_name_says(mode, dtype, records, activations, generator):
    numerics = NUMERICS[mode]
    x = torch.randn(32, 64, generator=generator, dtype=dtype)
    assert numerics.dtype == dtype
    assert torch.equal(numerics.index_query(x), x) is not records
    assert torch.equal(numerics.bf16(x), x) is not activations
    assert torch.equal(numerics.fp8(x), x) is not activations
    for rounding in (numerics.bf16, numerics.fp8, numerics.index_query):
        assert rounding(x).dtype == dtype
        assert torch.equal(rounding(rounding(x)), rounding(x))
