// A product over many places of an expert: bound by arithmetic.

#pragma once

#include "hopper.cuh"
#include "widening.cuh"

namespace {

constexpr int ROWS = 256, PLACES = 144, STAGES = 6;
constexpr int COPIERS = 128, THREADS = 384;
constexpr int FEWER = 56, MORE = 224;  // registers a thread

struct Shared {
  uint8_t x[STAGES][PLACES * DEEP];  // rows of 128 bytes, swizzled
  uint8_t data[STAGES][2][ROWS * 32];
  int exponents[STAGES][ROWS];
  // of a tile, for its epilogue; a tile writes the one that the tile before it does not read
  float scale[2][PLACES], weight[2][PLACES];
  uint32_t row[2][PLACES];
  int4 tile[2];  // expert, row tile, places used, places rounded up to a product's width
  uint64_t full[STAGES], free[STAGES], told[2];
};

// The narrowest product that holds so many places.
__device__ __forceinline__ int columns_for(int used) {
  const int step = used > 96 ? 8 : 16;
  return (used + step - 1) / step * step;
}

template <bool GATE_UP>
__device__ __forceinline__ void copy(const Arguments& a, Shared& s, int row_tiles, int work) {
  const int t = threadIdx.x, lane = t % 32, warp = __shfl_sync(~0u, t / 32, 0);
  const int64_t n = a.n, steps = a.k / DEEP;
  Turn<STAGES> turn;
  uint32_t side = 0;
  for (int at = blockIdx.x; at < work; at += gridDim.x) {
    const int4 tile = __ldg(a.tiles + 1 + at / row_tiles);  // expert, first place, used
    const int row_tile = at % row_tiles, columns = columns_for(tile.z);
    const int expert = __shfl_sync(~0u, tile.x, 0);
    const auto pair_at = [&](int column) {
      return __ldg(a.order + tile.y + min(column, tile.z - 1));
    };
    uint32_t from[PLACES / 16];
#pragma unroll
    for (int i = 0; i < PLACES / 16; ++i) {
      const int column = min(t / 8 + 16 * i, tile.z - 1);
      const uint32_t source = GATE_UP ? pair_at(column) / a.slots : tile.y + column;
      from[i] = source * a.k + t % 8 * 16;
    }
    const uint8_t* data = a.data + (expert * (a.k / 64) * n + row_tile * ROWS) * 32;
    const int* exponents = a.exponents + expert * steps * n + row_tile * ROWS;
    for (int step = 0; step < steps; ++step) {
      wait(&s.free[turn.slot], turn.parity ^ 1);
      if (step == 0) {
        for (int column = t; column < columns; column += COPIERS) {
          const uint32_t place = tile.y + min(column, tile.z - 1), pair = pair_at(column);
          s.scale[side][column] = __ldg(a.x_scale + (GATE_UP ? pair / a.slots : place));
          s.weight[side][column] = GATE_UP ? __ldg(a.weights + pair) : 0.0f;
          s.row[side][column] = GATE_UP ? place : pair;
        }
        if (t == 0) s.tile[side] = make_int4(tile.x, row_tile, tile.z, columns);
        __syncwarp();
        if (lane == 0) arrive(&s.told[side]);
        side ^= 1;
      }
      uint64_t* full = &s.full[turn.slot];
      if (warp == 0 && elected()) {
        expect(full, ROWS * 68);
        copy_bulk(s.data[turn.slot][0], data, ROWS * 32, full);
        copy_bulk(s.data[turn.slot][1], data + n * 32, ROWS * 32, full);
        copy_bulk(s.exponents[turn.slot], exponents, ROWS * 4, full);
      }
      __syncwarp();
      data += n * 64;
      exponents += n;
      const uint32_t to =
          address(s.x[turn.slot]) + t / 8 * DEEP + ((t % 8) ^ (t / 8 % 8)) * 16;
#pragma unroll
      for (int i = 0; i < PLACES / 16; ++i) {
        if (t / 8 + 16 * i < columns) copy_16(to + i * 16 * DEEP, a.x + from[i] + step * DEEP);
      }
      arrive_with_copies(full);
      turn.next();
    }
  }
}

// One tile, N columns wide. Leaves `turn` at the next tile's first step.
template <bool GATE_UP, int N>
__device__ __forceinline__ void consume(const Arguments& a, Shared& s, Turn<STAGES>& turn,
                                        uint32_t side) {
  uint32_t thread;  // read anew, or what all widths have in common takes registers between tiles
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const int lane = thread % 32, g = lane / 4, c = lane % 4;
  const int own = (thread - COPIERS) / 32 * 32;  // a warp's 32 rows of the tile
  float d[2][N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[0][i] = d[1][i] = 0.0f;
  uint32_t w[2][2][2][4];  // pair, group, 16 rows, registers
  const auto fetch = [&](int pair) {
    const uint8_t* data = s.data[turn.slot][pair] + (own + g) * 32 + c * 8;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int* exponents = &s.exponents[turn.slot][own + m * 16 + g];
      const int e[2] = {exponents[0], exponents[8]};
      widen_rows(data + m * 512, e, pair, w[pair][0][m], w[pair][1][m]);
    }
  };
  const auto multiply_pair = [&](int pair) {
    const uint64_t x = (1ull << 62) | (64ull << 32) | (address(s.x[turn.slot]) >> 4);
    mma_open();
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      multiply<N>(d[0], w[pair][group][0], x + 4 * pair + 2 * group);
      multiply<N>(d[1], w[pair][group][1], x + 4 * pair + 2 * group);
    }
    mma_commit();
  };
  wait(&s.full[turn.slot], turn.parity);
  fence_proxy();
  fetch(0);
  // a product left open over the end of the loop would make the assembler serialise them all
#pragma unroll 1
  for (int left = a.k / DEEP; left > 0; --left) {
    multiply_pair(0);
    fetch(1);
    multiply_pair(1);
    uint64_t* free = &s.free[turn.slot];
    turn.next();
    mma_wait<1>();
    if (left > 1) {
      wait(&s.full[turn.slot], turn.parity);
      fence_proxy();
      fetch(0);
    }
    mma_wait<0>();
    if (lane == 0) arrive(free);
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(d[0][i]), "+f"(d[1][i])::"memory");

  const int4 tile = s.tile[side];
  const int n = tile.y * ROWS + own;
  const int64_t width = GATE_UP ? a.n / 2 : a.n;
  __nv_bfloat16* out = a.out + (GATE_UP ? n / 2 : n) + 2 * c;
  const float* row_scale = a.row_scale + static_cast<int64_t>(tile.x) * a.n + n + g;
  float of_row[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    of_row[m][0] = __ldg(row_scale + m * 16);
    of_row[m][1] = __ldg(row_scale + m * 16 + 8);
  }
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    const float2 scale = *reinterpret_cast<const float2*>(&s.scale[side][8 * j + 2 * c]);
    const float2 weight = *reinterpret_cast<const float2*>(&s.weight[side][8 * j + 2 * c]);
    const bool stored = 8 * j + g < tile.z;
    uint32_t* to = reinterpret_cast<uint32_t*>(out + s.row[side][8 * j + g] * width);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float* v = d[m] + 4 * j;
      const float low[2] = {v[0] * (of_row[m][0] * scale.x), v[1] * (of_row[m][0] * scale.y)};
      const float high[2] = {v[2] * (of_row[m][1] * scale.x), v[3] * (of_row[m][1] * scale.y)};
      uint32_t pairs[2];
      if constexpr (GATE_UP) {
        pairs[0] = bf16_pair(swiglu(low[0], high[0], a.limit) * weight.x,
                             swiglu(low[1], high[1], a.limit) * weight.y);
      } else {
        pairs[0] = bf16_pair(low[0], low[1]);
        pairs[1] = bf16_pair(high[0], high[1]);
      }
#pragma unroll
      for (int i = 0; i < (GATE_UP ? 1 : 2); ++i) {
        // from two columns of one row to two rows of one column
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pairs[i]));
        if (stored) to[(GATE_UP ? m : 2 * m + i) * 4] = pairs[i];
      }
    }
  }
}

template <bool GATE_UP>
__device__ __forceinline__ void compute(const Arguments& a, Shared& s, int work) {
  Turn<STAGES> turn;
  Turn<2> side;
  for (int at = blockIdx.x; at < work; at += gridDim.x) {
    wait(&s.told[side.slot], side.parity);
    const int columns = s.tile[side.slot].w;
#define WIDTH(N) \
  if (columns == N) consume<GATE_UP, N>(a, s, turn, side.slot);
    WIDTH(16)
    WIDTH(32)
    WIDTH(48)
    WIDTH(64)
    WIDTH(80)
    WIDTH(96)
    WIDTH(104)
    WIDTH(112)
    WIDTH(120)
    WIDTH(128)
    WIDTH(136)
    WIDTH(144)
#undef WIDTH
    side.next();
  }
}

template <bool GATE_UP>
__global__ void __launch_bounds__(THREADS, 1) many(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      prepare(&s.full[i], COPIERS + 1);  // the copiers, and one of them for the weights
      prepare(&s.free[i], 8);            // of warps
    }
    for (int i = 0; i < 2; ++i) prepare(&s.told[i], 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int row_tiles = a.n / ROWS, work = __ldg(a.tiles).x * row_tiles;
  if (__shfl_sync(~0u, threadIdx.x / 128, 0) == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEWER));
    copy<GATE_UP>(a, s, row_tiles, work);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE));
    compute<GATE_UP>(a, s, work);
  }
}

}  // namespace
