// What the products share: their arguments, FP4 to E4M3 in registers, SwiGLU.

#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

namespace {

constexpr int DEEP = 128;  // inputs a step: two pairs of groups of 32

struct Arguments {
  const uint8_t* x;        // many: [rows, k] E4M3; few: [rows, k] bf16
  const float* x_scale;    // many: [rows]
  const uint8_t* data;     // [experts, k / 64, n, 32]
  const int* exponents;    // [experts, k / 128, n]
  const float* row_scale;  // [experts, n]
  const float* weights;    // [pairs]
  const int* ids;          // few: [pairs]
  const int* order;        // many: [pairs]
  const int4* tiles;       // many: [1 + tiles] as `kernel.sort_pairs` writes them
  __nv_bfloat16* out;      // gate and up: [places, n / 2]; down: [pairs, n]
  float limit;
  int slots, n, k, first, experts;
};

// Eight values, four of each group of a pair, to E4M3: see `packing.py`.
__device__ __forceinline__ void widen(uint32_t word, const uint32_t (&low)[2],
                                      const uint32_t (&high)[2], uint32_t& a, uint32_t& b) {
  asm("{\n.reg .b32 t, m, s;\n"
      "and.b32 t, %2, 0x77777777;\n"
      "prmt.b32 m, %3, %4, t;\n"
      "lop3.b32 %0, %2, 0x80808080, m, 0xEA;\n"
      "shr.u32 t, t, 16;\n"
      "prmt.b32 m, %5, %6, t;\n"
      "shl.b32 s, %2, 4;\n"
      "lop3.b32 %1, s, 0x80808080, m, 0xEA;\n}"
      : "=r"(a), "=r"(b)
      : "r"(word), "r"(low[0]), "r"(high[0]), "r"(low[1]), "r"(high[1]));
}

// Of a row and a pair of groups: the E4M3 bytes of magnitudes 0 ... 1.5 and 2 ... 6.
__device__ __forceinline__ void tables(int exponents, int pair, uint32_t (&low)[2],
                                       uint32_t (&high)[2]) {
#pragma unroll
  for (int group = 0; group < 2; ++group) {  // the exponent in all four bytes, then times 8
    const uint32_t e = __byte_perm(exponents, 0, 0x1111 * (2 * pair + group));
    low[group] = e * 0x800u + 0x0C080000u;
    high[group] = e * 8u + 0x1C181410u;
  }
}

// A thread's part of 16 weight rows and a pair of groups: words 2c and 2c + 1 of rows g and g + 8.
// `data` points at the words of row g. a and b: fragments of the two groups.
__device__ __forceinline__ void widen_rows(const uint8_t* data, const int* exponents, int pair,
                                           uint32_t* a, uint32_t* b) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint2 words = *reinterpret_cast<const uint2*>(data + r * 256);
    uint32_t low[2], high[2];
    tables(exponents[r], pair, low, high);
    widen(words.x, low, high, a[r], b[r]);
    widen(words.y, low, high, a[2 + r], b[2 + r]);
  }
}

// silu(min(gate, limit)) * clamp(up, limit), in the instructions that Triton chooses.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  float power, ratio;
  asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(-gate * 1.4426950408889634f));
  asm("div.full.f32 %0, %1, %2;" : "=f"(ratio) : "f"(gate), "f"(1.0f + power));
  return ratio * up;
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<uint32_t&>(pair);
}

}  // namespace
