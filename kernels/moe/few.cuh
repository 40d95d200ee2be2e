// A product over a few (token, slot) pairs: bound by reading weights.

#pragma once

#include "activations.cuh"
#include "hopper.cuh"
#include "widening.cuh"

namespace {

constexpr int FEW_ROWS = 64, FEW_STAGES = 4;
constexpr int FEW_THREADS = 160;  // four warps and one that copies
constexpr int FEW_PROGRAMS = 5;   // a multiprocessor: those of the second product come up early

// Depth decides the size of x, which follows the ring. A product's eight columns are x and x moved
// on by 16 ... 112 bytes: only the first one counts.
struct FewShared {
  uint8_t data[FEW_STAGES][2][FEW_ROWS * 32];
  int exponents[FEW_STAGES][FEW_ROWS];
  uint64_t full[FEW_STAGES], free[FEW_STAGES];
  int tops[4];
};

// What `quantise_rows` does, for one row by 128 threads into shared memory; returns its scale.
__device__ __forceinline__ float quantise(const uint4* x, int k, uint8_t* out, int* tops) {
  constexpr int ROUNDS = 5;  // 8 values a thread each: k up to 5,120
  const int t = threadIdx.x;
  uint2 q[ROUNDS];
  int exponent[ROUNDS], top = 0;
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const bool inside = (i * 128 + t) * 8 < k;
    exponent[i] =
        quantise_quarter(inside ? __ldcg(x + i * 128 + t) : make_uint4(0, 0, 0, 0), q[i]);
    top = max(top, exponent[i]);
  }
  top = __reduce_max_sync(~0u, top);
  if (t % 32 == 0) tops[t / 32] = top;
  asm volatile("bar.sync 1, 128;" ::: "memory");
  top = max(max(tops[0], tops[1]), max(tops[2], tops[3]));
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int at = (i * 128 + t) * 8;
    if (at < k) store_quarter(out, at, q[i], exponent[i], top);
  }
  fence_proxy();
  asm volatile("bar.sync 1, 128;" ::: "memory");
  return power_of_two(top);
}

// Grid: row tiles, pairs. The first product of a call reads x [tokens, k], the second u [pairs, k].
template <bool GATE_UP>
__global__ void __launch_bounds__(FEW_THREADS, FEW_PROGRAMS)
    few(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  FewShared& s = *reinterpret_cast<FewShared*>(memory);
  uint8_t* x = memory + (sizeof(FewShared) + 127) / 128 * 128;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, own = threadIdx.x / 32 * 16;
  const int pair = blockIdx.y;
  const int expert = __shfl_sync(~0u, __ldg(a.ids + pair), 0) - a.first;
  if (threadIdx.x == 128) {
    for (int i = 0; i < FEW_STAGES; ++i) {
      prepare(&s.full[i], 1);
      prepare(&s.free[i], 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (expert < 0 || expert >= a.experts) return;
  const int64_t n = a.n;
  const int steps = a.k / DEEP, row0 = blockIdx.x * FEW_ROWS;
  if (__shfl_sync(~0u, threadIdx.x / 128, 0) == 1) {
    const uint8_t* data = a.data + (static_cast<int64_t>(expert) * (a.k / 64) * n + row0) * 32;
    const int* exponents = a.exponents + static_cast<int64_t>(expert) * steps * n + row0;
    Turn<FEW_STAGES> turn;
    for (int step = 0; step < steps; ++step) {
      uint64_t* full = &s.full[turn.slot];
      if (step >= FEW_STAGES) wait(&s.free[turn.slot], turn.parity ^ 1);
      if (elected()) {
        expect(full, FEW_ROWS * 68);
        copy_bulk(s.data[turn.slot][0], data, FEW_ROWS * 32, full);
        copy_bulk(s.data[turn.slot][1], data + n * 32, FEW_ROWS * 32, full);
        copy_bulk(s.exponents[turn.slot], exponents, FEW_ROWS * 4, full);
      }
      __syncwarp();
      if (step == 0) __syncthreads();  // the others may wait on the barriers
      data += n * 64;
      exponents += n;
      turn.next();
    }
    return;
  }
  __syncthreads();
  const float* row_scale = a.row_scale + expert * n + row0 + own + g;
  const float of_row[2] = {__ldg(row_scale), __ldg(row_scale + 8)};
  if (!GATE_UP) asm volatile("griddepcontrol.wait;" ::: "memory");
  const int source = GATE_UP ? pair / a.slots : pair;
  const float x_scale = quantise(
      reinterpret_cast<const uint4*>(a.x + static_cast<int64_t>(source) * a.k * 2), a.k, x, s.tops);

  float d[4] = {};
  Turn<FEW_STAGES> turn;
  uint32_t w[2][4][4];  // of two steps in turn: one is widened while the other is multiplied
  const auto fetch = [&](uint32_t (&w)[4][4]) {
    wait(&s.full[turn.slot], turn.parity);
    const int* exponents = &s.exponents[turn.slot][own + g];
    const int e[2] = {exponents[0], exponents[8]};
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      widen_rows(s.data[turn.slot][p] + (own + g) * 32 + c * 8, e, p, w[2 * p], w[2 * p + 1]);
    }
    __syncwarp();
    if (lane == 0) arrive(&s.free[turn.slot]);
    turn.next();
  };
  const auto add = [&](const uint32_t (&w)[4][4], int step) {
    // core matrices (8 columns of 16 bytes) start 16 bytes apart
    const uint64_t columns = (1ull << 16) | (8ull << 32) | (address(x + step * DEEP) >> 4);
    mma_open();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<8>(d, w[i], columns + 2 * i);
    mma_commit();
  };
  fetch(w[0]);
#pragma unroll 1
  for (int step = 0; step < steps; step += 2) {
    const bool more = step + 1 < steps;
    add(w[0], step);
    if (more) fetch(w[1]);
    mma_wait<0>();
    if (more) add(w[1], step + 1);
    if (step + 2 < steps) fetch(w[0]);
    mma_wait<0>();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[i])::"memory");
  if (c != 0) return;  // column 0 is with the first thread of each four
  const float low = d[0] * (of_row[0] * x_scale), high = d[2] * (of_row[1] * x_scale);
  if constexpr (GATE_UP) {
    a.out[pair * (n / 2) + (row0 + own) / 2 + g] =
        __float2bfloat16_rn(swiglu(low, high, a.limit) * __ldg(a.weights + pair));
  } else {
    a.out[pair * n + row0 + own + g] = __float2bfloat16_rn(low);
    a.out[pair * n + row0 + own + g + 8] = __float2bfloat16_rn(high);
  }
}

}  // namespace
