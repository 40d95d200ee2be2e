"""The number formats, bit for bit: golden bytes, published examples, ties, round trips."""

import pytest
import torch

from diptych.model.quant import (
    E2M1_VALUES,
    E4M3_VALUES,
    E8M0_VALUES,
    FP8_G32,
    MXFP4_G32,
    NVFP4_G16,
    decode_fp8_blocks,
    encode_fp8_blocks,
    power_of_two_above,
    round_bf16,
    round_fp8_blocks,
    unpack_e2m1,
)

QUANTISERS = {"fp8": FP8_G32, "mxfp4": MXFP4_G32, "nvfp4": NVFP4_G16}
DATA = {"fp8": "bytes", "mxfp4": "packed", "nvfp4": "packed"}
SCALES = {"fp8": "scale_ue8m0", "mxfp4": "scale_ue8m0", "nvfp4": "scale_e4m3"}


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize("source", ["f32", "bf16"])
def test_bytes_scales_and_values_match_golden(golden, name, source):
    g = {k.removeprefix(f"{source}."): v for k, v in golden("ops/quant").items() if source in k}
    quantiser = QUANTISERS[name]
    data, scales = quantiser.encode(g["x"])
    assert torch.equal(data, g[f"{name}.{DATA[name]}"])
    assert torch.equal(scales, g[f"{name}.{SCALES[name]}"])
    assert torch.equal(quantiser.decode(data, scales), g[f"{name}.dequant"])
    assert torch.equal(quantiser.round(g["x"]), g[f"{name}.dequant"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", QUANTISERS)
def test_rounding_is_decoding_what_was_encoded(name, dtype, generator):
    quantiser = QUANTISERS[name]
    x = torch.randn(257, 128, generator=generator, dtype=dtype)
    x = x * torch.exp2(torch.randint(-20, 20, (257, 1), generator=generator))
    x[3], x[4, :64], x[5] = 0, -0.0, 1e-30
    decoded = quantiser.decode(*quantiser.encode(x)).to(dtype)
    rounded = quantiser.round(x)
    assert torch.equal(rounded, decoded)
    assert torch.equal(torch.signbit(rounded), torch.signbit(decoded))
    assert torch.equal(quantiser.round(rounded), rounded) or name == "nvfp4"


def test_published_values_of_each_quantiser():
    x = [0.3 * (5 * i % 13) - 1.7 for i in range(32)]
    x = torch.tensor(x).to(torch.bfloat16).float()
    fp8 = [-1.75, -0.203125, 1.25, -1.125, 0.40625, 1.875, -0.5, 1]
    mxfp4 = [-1.5, -0.25, 1.5, -1, 0.5, 2, -0.5, 1, -1.5, 0, 1.5, -0.75, 0.75, -1.5]
    nvfp4 = [-1.875, -0.15625, 1.25, -1.25, 0.46875, 1.875, -0.46875, 0.9375]
    assert FP8_G32.round(x)[:8].tolist() == fp8
    assert MXFP4_G32.round(x)[:14].tolist() == mxfp4
    assert NVFP4_G16.round(x)[:8].tolist() == nvfp4
    assert E8M0_VALUES[int(FP8_G32.encode(x)[1][0])] == 2**-7
    assert E8M0_VALUES[int(MXFP4_G32.encode(x)[1][0])] == 0.5
    assert E4M3_VALUES[int(NVFP4_G16.encode(x)[1][0])] == 0.3125


def test_ties_go_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 4)
    assert MXFP4_G32.round(ties)[:8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert MXFP4_G32.round(-ties)[:8].tolist() == [0, -1, -1, -2, -2, -4, -4, -6]


def test_the_power_of_two_above_is_exact_at_powers_of_two():
    exponents = torch.arange(-126, 127)
    powers = torch.exp2(exponents.double()).float()
    assert torch.equal(power_of_two_above(powers), exponents.int() + 127)
    above = torch.nextafter(powers, torch.tensor(torch.inf))
    assert torch.equal(power_of_two_above(above), exponents.int() + 128)


def test_value_tables_match_golden(golden):
    g = golden("ops/quant")
    assert torch.equal(E2M1_VALUES, g["table.e2m1_values"])
    nan = g["table.e4m3_is_nan"].bool()
    assert torch.equal(E4M3_VALUES.isnan(), nan)
    assert torch.equal(E4M3_VALUES[~nan], g["table.e4m3_values"][~nan])
    assert E8M0_VALUES[[0, 127, 254]].tolist() == [2.0**-127, 1.0, 2.0**127]
    assert E8M0_VALUES[255].isnan()


def test_stored_weights_decode_as_golden_with_partial_blocks(golden):
    g = golden("ops/quant")
    data, scales = g["weight_fp8.bytes"], g["weight_fp8.scale_ue8m0"]
    assert torch.equal(decode_fp8_blocks(data, scales), g["weight_fp8.dequant"])
    got, got_scales = encode_fp8_blocks(g["weight_fp8.w"])
    assert torch.equal(got, data)
    assert torch.equal(got_scales, scales)
    packed = g["weight_fp4.packed"], g["weight_fp4.scale_ue8m0"]
    assert torch.equal(MXFP4_G32.decode(*packed), g["weight_fp4.dequant"])
    table = g["table_fp8.bytes"], g["table_fp8.scale_ue8m0"]
    assert torch.equal(FP8_G32.decode(*table), g["table_fp8.dequant"])


def test_a_published_fp8_row_decodes():
    row = torch.tensor([[0xD8, 0x71, 0xF2, 0x79, 0x70, 0x69, 0xF0, 0xE5]], dtype=torch.uint8)
    got = decode_fp8_blocks(row, torch.tensor([[0x73]], dtype=torch.uint8))
    expected = [-0.00390625, 0.03515625, -0.0390625, 0.0703125]
    expected += [0.03125, 0.017578125, -0.03125, -0.0126953125]
    assert got.tolist() == [expected]


def test_the_even_element_lies_in_the_low_nibble():
    assert unpack_e2m1(torch.tensor([[0x72, 0xF9]], dtype=torch.uint8)).tolist() == [
        [1, 6, -0.5, -6]
    ]


@pytest.mark.parametrize("rounding", [FP8_G32.round, MXFP4_G32.round, NVFP4_G16.round, round_bf16])
def test_gradients_pass_straight_through(rounding, generator):
    x = torch.randn(4, 64, generator=generator, requires_grad=True)
    weight = torch.randn(4, 64, generator=generator)
    (rounding(x) * weight).sum().backward()
    assert torch.equal(x.grad, weight)
    assert torch.equal(rounding(x), rounding(x.detach()))


def test_gradients_stop_when_they_are_told_to(generator):
    x = torch.randn(4, 64, generator=generator, requires_grad=True)
    assert not FP8_G32.round(x, straight_through=False).requires_grad


@pytest.mark.parametrize("shape", [(64, 96), (40, 70), (1, 32)])
def test_rounding_fp8_blocks_is_a_round_trip_with_the_gradient_of_the_identity(shape, generator):
    x = torch.randn(shape, generator=generator)
    x[0, :2] = torch.tensor([1e3, 1e-9])
    x.requires_grad_()
    rounded = round_fp8_blocks(x)
    assert torch.equal(rounded, decode_fp8_blocks(*encode_fp8_blocks(x.detach())))
    rounded.sum().backward()
    assert torch.equal(x.grad, torch.ones(shape))
