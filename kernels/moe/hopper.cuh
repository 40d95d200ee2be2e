// Hopper's barriers, asynchronous copies and FP8 matrix products.

#pragma once

#include <stdint.h>

namespace {

// --- barriers and copies ------------------------------------------------------------------------

__device__ __forceinline__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void prepare(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals));
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// Arrive, and let the phase end only after so many bytes have come by bulk copies.
__device__ __forceinline__ void expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}" ::"r"(address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void copy_bulk(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(barrier))
      : "memory");
}

// True in one thread of a whole warp, in a way that lets the assembler see it is one.
__device__ __forceinline__ bool elected() {
  uint32_t yes;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(yes));
  return yes;
}

__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

// Arrive once all of this thread's 16-byte copies have come.
__device__ __forceinline__ void arrive_with_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address(barrier))
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

__device__ __forceinline__ void mma_open() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most `OPEN` groups are unfinished.
template <int OPEN>
__device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define N4 "%0,%1,%2,%3"
#define N8 N4 ",%4,%5,%6,%7"
#define N16 N8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define N24 N16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define N32 N24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define N40 N32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define N48 N40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define N52 N48 ",%48,%49,%50,%51"
#define N56 N52 ",%52,%53,%54,%55"
#define N60 N56 ",%56,%57,%58,%59"
#define N64 N60 ",%60,%61,%62,%63"
#define N68 N64 ",%64,%65,%66,%67"
#define N72 N68 ",%68,%69,%70,%71"

#define PRODUCT(COLUMNS, NUMBERS, A0, A1, A2, A3, B, ...)                                         \
  if constexpr (N == COLUMNS) {                                                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 {" NUMBERS       \
                 "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", 1, 1, 1;"                    \
                 : __VA_ARGS__                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                           \
  }

// d[64 x N] += a[64 x 32] in registers times b[N x 32]^T in shared memory.
template <int N>
__device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t* a, uint64_t b) {
  PRODUCT(8, N4, 4, 5, 6, 7, 8, D4(0))
  PRODUCT(16, N8, 8, 9, 10, 11, 12, D8(0))
  PRODUCT(32, N16, 16, 17, 18, 19, 20, D16(0))
  PRODUCT(48, N24, 24, 25, 26, 27, 28, D16(0), D8(16))
  PRODUCT(64, N32, 32, 33, 34, 35, 36, D32(0))
  PRODUCT(80, N40, 40, 41, 42, 43, 44, D32(0), D8(32))
  PRODUCT(96, N48, 48, 49, 50, 51, 52, D32(0), D16(32))
  PRODUCT(104, N52, 52, 53, 54, 55, 56, D32(0), D16(32), D4(48))
  PRODUCT(112, N56, 56, 57, 58, 59, 60, D32(0), D16(32), D8(48))
  PRODUCT(120, N60, 60, 61, 62, 63, 64, D32(0), D16(32), D8(48), D4(56))
  PRODUCT(128, N64, 64, 65, 66, 67, 68, D64(0))
  PRODUCT(136, N68, 68, 69, 70, 71, 72, D64(0), D4(64))
  PRODUCT(144, N72, 72, 73, 74, 75, 76, D64(0), D8(64))
}

}  // namespace
