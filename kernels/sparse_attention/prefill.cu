// Sparse prefill attention on Hopper: 64 heads of 512 channels, keys are values, one row a turn.
//
// Four warpgroups share a multiprocessor; each has one job and its own registers:
//   gather   copies the float16 keys a row names into a ring of three blocks of 64
//   scores   holds q in registers, multiplies, and turns scores into weights (softmax, sink); of a
//            block's halves one is multiplied while the other is softened
//   values   two of them, half of the channels each: weights times keys, then the output
//
// Keys come from a table that `widen` writes: K / 128 in float16. Within 32 channels the pair at
// 8c + 2i stands at 8i + 2c, so that what a thread holds of q and of the output (fragments of the
// matrix product: pairs 2c, 2c + 8, ...) are eight neighbours, read and written as 16 bytes.
//
// C interface at the end; `native.py` builds and calls it.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int HEADS = 64, DIM = 512, BLOCK = 64, STAGES = 3;
constexpr uint32_t TILE = BLOCK * 128;  // 64 keys x 64 channels, rows of 128 bytes, swizzled
constexpr uint32_t KEYS = DIM / 64 * TILE;
constexpr int HELD = 384;  // channels of q in registers; the rest does not fit there
constexpr float LOG2E = 1.4426950408889634f;
// A row's sums are scaled only when a score exceeds the reference point by 2^SLACK.
constexpr float SLACK = 8.0f;
constexpr int FEW = 32, MANY = 160;  // registers a thread; 512 threads have 128 each on average

struct Shared {
  uint8_t keys[STAGES][KEYS];
  uint8_t weights[2][HEADS * 128];
  uint8_t q[(DIM - HELD) / 64][HEADS * 128];
  float fade[2][HEADS];
  float factor[2][HEADS];
  uint32_t valid[STAGES][2];  // a bit a key
  uint64_t keys_full[STAGES], keys_free[STAGES], weights_full[2], weights_free[2];
};

struct Arguments {
  const uint4* q;           // [rows, 64, 512] bf16
  const uint8_t* table;     // [num_window + entries, 512] float16
  const int* window_index;  // [rows, window]
  const int* entry_index;   // [rows, selected]
  const float* sink;        // [64]
  uint4* out;               // [rows, 64, 512] bf16
  float scale;              // of scores, in powers of two
  int rows, num_window, window, selected;
};

// --- barriers -----------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void prepare(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals));
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}" ::"r"(address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void fence_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A place in a ring of N and the parity of its round.
template <int N>
struct Turn {
  uint32_t slot = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == N) slot = 0, parity ^= 1;
  }
};

// --- matrix products ----------------------------------------------------------------------------

__device__ __forceinline__ void mma_open() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most `OPEN` groups are unfinished.
template <int OPEN>
__device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}

// Descriptors of 128-byte swizzled tiles; offsets in units of 16 bytes may be added.
__device__ __forceinline__ uint64_t descriptor(uint32_t at, uint32_t leading) {
  return (1ull << 62) | (64ull << 32) | (static_cast<uint64_t>(leading >> 4) << 16) | (at >> 4);
}

#define F8(d, i)                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(d, i) F8(d, i), F8(d, i + 8), F8(d, i + 16), F8(d, i + 24)

#define F16(d) F8(d, 0), F8(d, 8)

// d[64 x 32] (+)= a[64 x 16] in registers times keys[32 x 16]^T
__device__ __forceinline__ void mma_scores(float (&d)[16], const uint32_t* a, uint64_t keys,
                                           int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, "
      "0;\n}"
      : F16(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(keys), "r"(add));
}

// the same with a in shared memory
__device__ __forceinline__ void mma_scores(float (&d)[16], uint64_t a, uint64_t keys) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 0;"
      : F16(d)
      : "l"(a), "l"(keys));
}

// 128 channels from `FIRST` of d[64 x 256] (+)= weights[64 x 16] times keys[16 x 128], both in
// shared memory. (256 at once: the assembler wants 154 registers a thread, 512 threads have 128.)
template <int FIRST>
__device__ __forceinline__ void mma_values(float (&d)[128], uint64_t weights, uint64_t keys,
                                           int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,"
      "%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "%64, %65, p, 1, 1, 0, 1;\n}"
      : F32(d, FIRST), F32(d, FIRST + 32)
      : "l"(weights), "l"(keys), "r"(add));
}

// --- the three jobs -----------------------------------------------------------------------------

template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Number of the record that this lane (of 16) looks after in a block of a row's lists; -1: absent.
__device__ __forceinline__ int record(const Arguments& a, int row, int block, int place) {
  int at = block * BLOCK + place;
  if (at < a.window) return __ldg(a.window_index + static_cast<int64_t>(row) * a.window + at);
  at -= a.window;
  int number = __ldg(a.entry_index + static_cast<int64_t>(row) * a.selected + at);
  return number < 0 ? -1 : number + a.num_window;
}

__device__ __forceinline__ void gather(const Arguments& a, Shared& s, int blocks) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int place = warp * 16 + lane % 16;
  const uint32_t tile = lane / 8 * TILE + warp * 16 * 128, chunk = lane % 8 * 16;
  const uint8_t* table = a.table + lane * 16;
  Turn<STAGES> turn;
  int number = record(a, blockIdx.x, 0, place);
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int after = row + gridDim.x;
    for (int block = 0; block < blocks; ++block) {
      const int now = number;
      if (block + 1 < blocks) {
        number = record(a, row, block + 1, place);
      } else if (after < a.rows) {
        number = record(a, after, 0, place);
      }
      const uint32_t present = __ballot_sync(~0u, now >= 0);
      wait(&s.keys_free[turn.slot], turn.parity ^ 1);
      const uint32_t to = address(s.keys[turn.slot]) + tile;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int from = __shfl_sync(~0u, now, i), size = from < 0 ? 0 : 16;  // 0 writes zeros
        const uint8_t* source = table + static_cast<int64_t>(max(from, 0)) * (DIM * 2);
        const uint32_t target = to + i * 128 + (chunk ^ (i % 8 * 16));
        asm volatile(
            "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %4;\n"
            "cp.async.cg.shared.global.L2::128B [%2], [%3], 16, %4;" ::"r"(target),
            "l"(source), "r"(target + 4 * TILE), "l"(source + 512), "r"(size)
            : "memory");
      }
      if (lane == 0) {
        reinterpret_cast<uint16_t*>(s.valid[turn.slot])[warp] = static_cast<uint16_t>(present);
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
      fence_proxy();
      __syncwarp();
      if (lane == 0) arrive(&s.keys_full[turn.slot]);
      turn.next();
    }
  }
}

__device__ __forceinline__ uint32_t half_pair(uint32_t bf16_pair) {
  __half2 pair = __floats2half2_rn(__uint_as_float(bf16_pair << 16),
                                   __uint_as_float(bf16_pair & 0xffff0000u));
  return reinterpret_cast<uint32_t&>(pair);
}

__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// What one thread of `scores` works with. Its heads are h and h + 8; its keys of a half block
// 8 i + 2 c and the one after. Halves take turns: one is multiplied while the other's scores become
// weights.
struct Scorer {
  const Arguments& a;
  Shared& s;
  int lane, c, h;
  uint32_t q[HELD / 4];
  float peak[2], total[2], fade[2];

  __device__ __forceinline__ void load(int row) {
    const uint4* source = a.q + (static_cast<int64_t>(row) * HEADS + h) * (DIM / 8) + c;
#pragma unroll
    for (int j = 0; j < DIM / 32; ++j) {
      const uint4 x = __ldg(source + j * 4), y = __ldg(source + j * 4 + 8 * (DIM / 8));
      const uint32_t pairs[8] = {x.x, y.x, x.y, y.y, x.z, y.z, x.w, y.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (j < HELD / 32) {
          q[8 * j + i] = half_pair(pairs[i]);
        } else {  // a warp writes the heads that only its own products read
          uint8_t* to = s.q[j / 2 - HELD / 64] + (h + i % 2 * 8) * 128 + c * 4;
          *reinterpret_cast<uint32_t*>(to + ((j % 2 * 4 + i / 2) ^ (lane / 4)) * 16) =
              half_pair(pairs[i]);
        }
      }
    }
    fence_proxy();
    asm volatile("bar.sync 1, 128;" ::: "memory");
    peak[0] = peak[1] = -1e30f;
    total[0] = total[1] = 0.0f;
  }

  __device__ __forceinline__ void multiply(float (&d)[16], uint32_t slot, int half) {
    const uint64_t keys = descriptor(address(s.keys[slot]) + half * (TILE / 2), 16);
    mma_open();
#pragma unroll
    for (int k = 0; k < HELD / 16; ++k) {
      mma_scores(d, q + 4 * k, keys + k / 4 * (TILE / 16) + k % 4 * 2, k != 0);
    }
#pragma unroll
    for (int k = HELD / 16; k < DIM / 16; ++k) {
      const uint64_t rest = descriptor(address(s.q[k / 4 - HELD / 64]), 16);
      mma_scores(d, rest + k % 4 * 2, keys + k / 4 * (TILE / 16) + k % 4 * 2);
    }
    mma_commit();
  }

  // Scores -> weights, against a peak that may rise; fade says by how much sums then shrink.
  __device__ __forceinline__ void soften(float (&d)[16], uint32_t valid) {
    if (valid != ~0u) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (!(valid >> (2 * c + i / 4 * 8 + i % 2) & 1)) d[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* x = d + 2 * r;
      float top = fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[4], x[5])),
                        fmaxf(fmaxf(x[8], x[9]), fmaxf(x[12], x[13])));
      top = quad_max(top) * a.scale;
      top = top > peak[r] + SLACK ? top : peak[r];
      fade[r] = power(peak[r] - top);
      peak[r] = top;
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        x[i] = power(fmaf(x[i], a.scale, -top));
        x[i + 1] = power(fmaf(x[i + 1], a.scale, -top));
      }
      const float sum = ((x[0] + x[1]) + (x[4] + x[5])) + ((x[8] + x[9]) + (x[12] + x[13]));
      total[r] = fmaf(total[r], fade[r], sum);
    }
  }

  __device__ __forceinline__ __half2* place(uint32_t slot, int half, int i) {
    uint8_t* to = s.weights[slot] + h * 128 + c * 4;
    return reinterpret_cast<__half2*>(to + ((4 * half + i) ^ (lane / 4)) * 16);
  }

  __device__ __forceinline__ void post(float (&d)[16], uint32_t slot, int half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      __half2* to = place(slot, half, i);
      to[0] = __floats2half2_rn(d[4 * i], d[4 * i + 1]);
      to[256] = __floats2half2_rn(d[4 * i + 2], d[4 * i + 3]);  // 8 heads on
    }
  }

  // The second half raised the peak: the weights of the first shrink.
  __device__ __forceinline__ void shrink(uint32_t slot) {
    const __half2 low = __float2half2_rn(fade[0]), high = __float2half2_rn(fade[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      __half2* to = place(slot, 0, i);
      to[0] = __hmul2(to[0], low);
      to[256] = __hmul2(to[256], high);
    }
  }
};

__device__ __forceinline__ void scores(const Arguments& a, Shared& s, int blocks) {
  const int lane = threadIdx.x % 32;
  Scorer w = {a, s, lane, lane % 4, static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4};
  Turn<STAGES> turn;
  Turn<2> slot;
  int odd_row = 0;
  float left[16], right[16];

  const auto first_half = [&](uint32_t at) {
    w.soften(left, s.valid[at][0]);
    wait(&s.weights_free[slot.slot], slot.parity ^ 1);
    w.post(left, slot.slot, 0);
  };
  const auto second_half = [&](uint32_t at) {
    const float low = w.fade[0], high = w.fade[1];
    w.soften(right, s.valid[at][1]);
    w.post(right, slot.slot, 1);
    if (__any_sync(~0u, w.fade[0] != 1.0f || w.fade[1] != 1.0f)) w.shrink(slot.slot);
    if (w.c == 0) {
      s.fade[slot.slot][w.h] = low * w.fade[0];
      s.fade[slot.slot][w.h + 8] = high * w.fade[1];
    }
  };
  const auto publish = [&] {
    fence_proxy();
    __syncwarp();
    if (lane == 0) arrive(&s.weights_full[slot.slot]);
    slot.next();
  };

  for (int row = blockIdx.x; row < a.rows; row += gridDim.x) {
    w.load(row);
    wait(&s.keys_full[turn.slot], turn.parity);
    w.multiply(left, turn.slot, 0);
    mma_wait<0>();
    // a product left open over the end of the loop would make the assembler serialise them all
    for (int block = 1; block < blocks; ++block) {
      const uint32_t now = turn.slot;
      turn.next();
      w.multiply(right, now, 1);
      first_half(now);
      wait(&s.keys_full[turn.slot], turn.parity);
      mma_wait<0>();
      w.multiply(left, turn.slot, 0);
      second_half(now);
      publish();
      mma_wait<0>();
    }
    w.multiply(right, turn.slot, 1);
    first_half(turn.slot);
    mma_wait<0>();
    second_half(turn.slot);
    turn.next();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sink = __ldg(a.sink + w.h + 8 * r) * LOG2E;
      const float sum = quad_sum(w.total[r]) + power(fminf(sink - w.peak[r], 100.0f));
      if (w.c == 0) s.factor[odd_row][w.h + 8 * r] = sum > 0.0f ? 128.0f / sum : 0.0f;
    }
    publish();
    odd_row ^= 1;
  }
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<uint32_t&>(pair);
}

__device__ __forceinline__ void values(const Arguments& a, Shared& s, int blocks) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, c = lane % 4;
  const int side = threadIdx.x / 128 - 2;  // which half of the channels
  const int h = warp * 16 + lane / 4;
  Turn<STAGES> turn;
  Turn<2> post;
  int odd_row = 0;
  float d[128];
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x) {
    for (int block = 0; block < blocks; ++block) {
      wait(&s.weights_full[post.slot], post.parity);
      const float low = s.fade[post.slot][h], high = s.fade[post.slot][h + 8];
      if (block > 0 && __any_sync(~0u, low != 1.0f || high != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; ++i) d[i] *= i % 4 < 2 ? low : high;
      }
      const uint64_t weights = descriptor(address(s.weights[post.slot]), 16);
      const uint64_t keys = descriptor(address(s.keys[turn.slot]) + side * 4 * TILE, TILE);
      mma_open();
#pragma unroll
      for (int k = 0; k < BLOCK / 16; ++k) {
        mma_values<0>(d, weights + k * 2, keys + k * 128, block + k);
        mma_values<64>(d, weights + k * 2, keys + 2 * TILE / 16 + k * 128, block + k);
      }
      mma_commit();
      mma_wait<0>();
      if (lane == 0) {
        arrive(&s.keys_free[turn.slot]);
        arrive(&s.weights_free[post.slot]);
      }
      turn.next();
      post.next();
    }
    const float low = s.factor[odd_row][h], high = s.factor[odd_row][h + 8];
    odd_row ^= 1;
    uint4* to = a.out + (static_cast<int64_t>(row) * HEADS + h) * (DIM / 8) + side * 32 + c;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float* x = d + 16 * j;
      to[j * 4] = make_uint4(bf16_pair(x[0] * low, x[1] * low), bf16_pair(x[4] * low, x[5] * low),
                             bf16_pair(x[8] * low, x[9] * low),
                             bf16_pair(x[12] * low, x[13] * low));
      to[j * 4 + 8 * (DIM / 8)] =
          make_uint4(bf16_pair(x[2] * high, x[3] * high), bf16_pair(x[6] * high, x[7] * high),
                     bf16_pair(x[10] * high, x[11] * high),
                     bf16_pair(x[14] * high, x[15] * high));
    }
  }
}

__global__ void __launch_bounds__(512, 1) attend(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      prepare(&s.keys_full[i], 4);  // arrivals are of warps
      prepare(&s.keys_free[i], 8);
    }
    for (int i = 0; i < 2; ++i) {
      prepare(&s.weights_full[i], 4);
      prepare(&s.weights_free[i], 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int blocks = (a.window + a.selected) / BLOCK;
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group == 0) {
    give_registers<FEW>();
    gather(a, s, blocks);
  } else if (group == 1) {
    take_registers<MANY>();
    scores(a, s, blocks);
  } else {
    take_registers<MANY>();
    values(a, s, blocks);
  }
}

// --- the table ----------------------------------------------------------------------------------

// Four pairs of a group of 32 channels, 8c + 2 part for c = 0 ... 3, in table order.
__device__ __forceinline__ uint4 widen_entry(const uint8_t* record, int group, int part) {
  const uint4 data = __ldg(reinterpret_cast<const uint4*>(record + group * 16));
  const uint32_t scales =
      __ldg(reinterpret_cast<const uint16_t*>(record + DIM / 2 + group * 2));
  const uint32_t words[4] = {data.x, data.y, data.z, data.w};
  uint32_t pairs[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const uint32_t e4m3 = c < 2 ? scales & 255 : scales >> 8;
    // as float16 bits an E4M3 is 2^-8 of its value, an E2M1 2^-14
    const __half scale = __hmul(__ushort_as_half((e4m3 & 127) << 7 | (e4m3 & 128) << 8),
                                __float2half(32768.0f));
    const uint32_t byte = words[c] >> (8 * part), codes = (byte & 15) | (byte & 240) << 12;
    uint32_t bits = (codes & 0x00070007u) << 9 | (codes & 0x00080008u) << 12;
    __half2 pair = __hmul2(reinterpret_cast<__half2&>(bits), __half2half2(scale));
    pairs[c] = reinterpret_cast<uint32_t&>(pair);
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__device__ __forceinline__ uint4 widen_window(const uint8_t* record, int group, int part) {
  // 2^(byte - 127) / 128 x 2^8, which is missing in E4M3 read as float16 bits
  const float scale = 2.0f * __uint_as_float(static_cast<uint32_t>(record[DIM + group]) << 23);
  uint32_t pairs[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const uint32_t two =
        __ldg(reinterpret_cast<const uint16_t*>(record + group * 32 + c * 8 + part * 2));
    const uint32_t codes = (two & 255) | (two & 0xff00u) << 8;
    uint32_t bits = (codes & 0x007f007fu) << 7 | (codes & 0x00800080u) << 8;
    const float2 value = __half22float2(reinterpret_cast<__half2&>(bits));
    __half2 pair = __floats2half2_rn(value.x * scale, value.y * scale);
    pairs[c] = reinterpret_cast<uint32_t&>(pair);
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__global__ void widen(const uint8_t* window, const uint8_t* entries, uint4* table, int num_window,
                      int num_entries) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int record = static_cast<int>(at / 64), group = at / 4 % 16, part = at % 4;
  if (record < num_window) {
    table[at] = widen_window(window + static_cast<int64_t>(record) * (DIM + DIM / 32), group, part);
  } else if (record < num_window + num_entries) {
    table[at] = widen_entry(
        entries + static_cast<int64_t>(record - num_window) * (DIM / 2 + DIM / 16), group, part);
  }
}

}  // namespace

// -> a CUDA error code. table: room for [num_window + num_entries, 512] float16.
extern "C" int sparse_prefill(const void* q, const void* window, const void* window_index,
                              const void* entries, const void* entry_index, const void* sink,
                              void* out, void* table, float scale, int rows, int num_window,
                              int num_entries, int window_width, int entry_width, int processors,
                              void* stream_handle) {
  cudaStream_t stream = static_cast<cudaStream_t>(stream_handle);
  if (num_window + num_entries > 0) {
    widen<<<(num_window + num_entries + 3) / 4, 256, 0, stream>>>(
        static_cast<const uint8_t*>(window), static_cast<const uint8_t*>(entries),
        static_cast<uint4*>(table), num_window, num_entries);
  }
  cudaError_t failed = cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            sizeof(Shared));
  if (failed != cudaSuccess) return failed;
  const Arguments arguments = {static_cast<const uint4*>(q),
                               static_cast<const uint8_t*>(table),
                               static_cast<const int*>(window_index),
                               static_cast<const int*>(entry_index),
                               static_cast<const float*>(sink),
                               static_cast<uint4*>(out),
                               scale,
                               rows,
                               num_window,
                               window_width,
                               entry_width};
  attend<<<min(rows, processors), 512, sizeof(Shared), stream>>>(arguments);
  return cudaGetLastError();
}
