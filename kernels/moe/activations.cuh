// Activation rows to E4M3, as `kernels/activations.py` does, in the order the products want.

#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

namespace {

__device__ __forceinline__ int ceil_exponent(float x) {
  const uint32_t bits = __float_as_uint(x);
  return static_cast<int>(bits >> 23) + ((bits & 0x7FFFFF) != 0);
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
}

__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// Eight bf16 values, a quarter of a group of 32, to E4M3 with the group's scale; its exponent.
// The group's other quarters are with the neighbouring threads.
__device__ __forceinline__ int quantise_quarter(const uint4& x, uint2& q) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  float f[8], peak = 1e-4f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    f[2 * j] = __uint_as_float(words[j] << 16);
    f[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
    peak = fmaxf(peak, fmaxf(fabsf(f[2 * j]), fabsf(f[2 * j + 1])));
  }
  peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
  peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
  const int exponent = ceil_exponent(peak * (1.0f / 448.0f));
  const float scale = power_of_two(254 - exponent);
  q.x = e4m3_pair(f[0] * scale, f[1] * scale) | e4m3_pair(f[2] * scale, f[3] * scale) << 16;
  q.y = e4m3_pair(f[4] * scale, f[5] * scale) | e4m3_pair(f[6] * scale, f[7] * scale) << 16;
  return exponent;
}

// Four E4M3 values from their group's scale to their row's.
__device__ __forceinline__ uint32_t fold(uint32_t q, int exponent, int top) {
  const float by = power_of_two(max(exponent - top + 127, 1));
  uint32_t halves[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const __half2_raw raw =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(q >> 16 * h), __NV_E4M3);
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&raw));
    halves[h] = e4m3_pair(v.x * by, v.y * by);
  }
  return halves[0] | halves[1] << 16;
}

// Where a quarter of a group goes. Of a group's eight words the even ones come first, so that the
// weights a thread multiplies them with are neighbours; a product adds 32 terms at once, whatever
// their order.
__device__ __forceinline__ void store_quarter(uint8_t* row, int at, uint2 q, int exponent,
                                              int top) {
  uint32_t* to = reinterpret_cast<uint32_t*>(row + at / 32 * 32) + at / 8 % 4;
  to[0] = fold(q.x, exponent, top);
  to[4] = fold(q.y, exponent, top);
}

// `activations.quantise_rows` but for the order in a group, a warp a row. x: [rows, k] bf16, k at
// most 256 ROUNDS.
template <int ROUNDS>
__global__ void __launch_bounds__(128, ROUNDS > 10 ? 4 : 8)
    quantise_rows(const uint4* x, uint8_t* out, float* scale, int rows, int k) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += static_cast<int64_t>(row) * (k / 8) + lane;
  out += static_cast<int64_t>(row) * k;
  uint2 q[ROUNDS];
  int exponent[ROUNDS], top = 0;
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const bool inside = (i * 32 + lane) * 8 < k;
    exponent[i] = quantise_quarter(inside ? __ldg(x + i * 32) : make_uint4(0, 0, 0, 0), q[i]);
    top = max(top, exponent[i]);
  }
  top = __reduce_max_sync(~0u, top);
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int at = (i * 32 + lane) * 8;
    if (at < k) store_quarter(out, at, q[i], exponent[i], top);
  }
  if (lane == 0) scale[row] = power_of_two(top);
}

}  // namespace
