"""Triton functions that several operations share: power-of-two scales, E4M3 rounding, products."""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def ceil_exponent(x):
    """Biased exponent of the smallest power of two >= x (float32, positive, normal)."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)


@triton.jit
def power_of_two(exponent):
    """2^(exponent - 127) as float32, for exponents 1 ... 254."""
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(x):
    """Round float32 (|x| <= 448) to E4M3, ties to even, also among subnormals.

    Rounded by hand, so that the cast is exact: the interpreter's own drops carries and truncates.
    The addition rounds values below 2^-6 to multiples of 2^-9.
    """
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    small = (x + 24576.0) - 24576.0
    return tl.where(tl.abs(x) < 0.015625, small, normal).to(tl.float8e4nv)


@triton.jit
def fp4_value(code):
    """E2M1 code (0 ... 15) -> float32."""
    m = code & 7
    big = ((m & 1) + 2).to(tl.float32) * tl.exp2(((m >> 1) - 2).to(tl.float32))
    value = tl.where(m < 2, m.to(tl.float32) * 0.5, big)
    return tl.where(code >= 8, -value, value)


@triton.jit
def to_bf16(x, COMPILED: tl.constexpr):
    """Round float32 to bfloat16. The interpreter's cast truncates, so it gets a rounded value."""
    if not COMPILED:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def product(a, b, acc, COMPILED: tl.constexpr):
    """acc + a @ b. The interpreter multiplies float32: its FP8 and bfloat16 dots are wrong."""
    if not COMPILED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Before reading what the previous kernel wrote, under programmatic dependent launch."""
    if OVERLAP:
        cuda.gdc_wait()


@triton.jit
def let_next_start(OVERLAP: tl.constexpr):
    """The next kernel may come up now and load what does not depend on this one."""
    if OVERLAP:
        cuda.gdc_launch_dependents()
