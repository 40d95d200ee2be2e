"""Frequencies, rotation and its inverse, against the golden operator cases and published values."""

import pytest
import torch

from diptych.model.rope import frequencies, turn
from diptych.model.spec import RopeSpec

CASES = {
    "plain_released": (RopeSpec(64, 1e4, 1.6e5, 16, 32, 1, 65536), False),
    "yarn_released": (RopeSpec(64, 1e4, 1.6e5, 16, 32, 1, 65536), True),
    "plain_tiny": (RopeSpec(16, 1e4, 1.6e5, 16, 32, 1, 256), False),
    "yarn_tiny": (RopeSpec(16, 1e4, 1.6e5, 16, 32, 1, 256), True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rotation_and_its_inverse_match_golden(golden, case, dtype):
    g = {k.removeprefix(f"{case}."): v for k, v in golden("ops/rope").items() if case in k}
    rope, compressed = CASES[case]
    frequency = frequencies(rope, compressed=compressed)
    torch.testing.assert_close(frequency, g["inv_freq"], rtol=1e-6, atol=0)
    turned = turn(g["inv_freq"], g["positions"], dtype)
    torch.testing.assert_close(turned.cos.float(), g["cos"], rtol=0, atol=1e-6)
    torch.testing.assert_close(turned.sin.float(), g["sin"], rtol=0, atol=1e-6)
    x = g["x"].to(dtype)
    torch.testing.assert_close(turned.rotate(x).float(), g["rotated"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(turned.unrotate(x).float(), g["inverse"], rtol=1e-5, atol=1e-5)


def test_released_yarn_frequencies_have_their_published_values():
    f = frequencies(CASES["yarn_released"][0], compressed=True)
    expected = {
        1: 0.687656045,
        15: 0.00363553851,
        16: 0.00226562493,
        17: 0.00139680132,
        20: 0.000296977785,
        24: 1.95312532e-05,
        25: 5.37231244e-06,
        31: 5.6805294e-07,
    }
    for i, value in expected.items():
        assert f[i].item() == pytest.approx(value, rel=1e-6)


def test_a_row_turned_and_turned_back_is_itself(generator):
    x = torch.randn(32, 3, 80, generator=generator, dtype=torch.float64)
    here = turn(
        frequencies(CASES["yarn_tiny"][0], compressed=True), torch.arange(32), torch.float64
    )
    torch.testing.assert_close(here.unrotate(here.rotate(x)), x, rtol=0, atol=1e-12)
