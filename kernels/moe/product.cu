// Products of routed experts on Hopper: FP8 activations times FP4 weights, packed by `packing.py`.
//
// `many` (a compute-bound batch): one program a multiprocessor walks over tiles of 256 weight rows
// and up to 144 places of one expert. One warpgroup copies (weights in bulk, activations row by
// row); two widen weights into registers and multiply, so that one pair of groups is widened while
// the pair before it is multiplied. The next tile's copies run under this tile's epilogue.
//
// `few` (one token or so): one program for 64 rows of one (token, slot), several a multiprocessor.
// It quantises its own activation row while the first weights are on their way.
//
// Either writes the same bits as `kernel.expert_product`. The C interface is what `native.py` calls.

#include "activations.cuh"
#include "few.cuh"
#include "many.cuh"

namespace {

template <bool GATE_UP>
cudaError_t start_many(const Arguments& a, int processors, cudaStream_t stream) {
  cudaError_t failed = cudaFuncSetAttribute(
      many<GATE_UP>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (failed != cudaSuccess) return failed;
  many<GATE_UP><<<processors, THREADS, sizeof(Shared), stream>>>(a);
  return cudaGetLastError();
}

template <bool GATE_UP>
cudaError_t start_few(const Arguments& a, int pairs, cudaStream_t stream) {
  const size_t bytes = (sizeof(FewShared) + 127) / 128 * 128 + a.k + 128;
  cudaError_t failed = cudaFuncSetAttribute(
      few<GATE_UP>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (failed != cudaSuccess) return failed;
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(a.n / FEW_ROWS, pairs);
  config.blockDim = dim3(FEW_THREADS);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = GATE_UP ? 0 : 1;  // a call's first kernel waits for all before it
  return cudaLaunchKernelEx(&config, few<GATE_UP>, a);
}

}  // namespace

// -> a CUDA error code. Shapes at `Arguments`; n a multiple of 256, k one of 128, at least 1,024.
extern "C" int product_many(const void* x, const void* x_scale, const void* data,
                            const void* exponents, const void* row_scale, const void* weights,
                            const void* order, const void* tiles, void* out, float limit,
                            int slots, int n, int k, int gate_up, int processors, void* stream) {
  const Arguments a = {static_cast<const uint8_t*>(x),     static_cast<const float*>(x_scale),
                       static_cast<const uint8_t*>(data),  static_cast<const int*>(exponents),
                       static_cast<const float*>(row_scale), static_cast<const float*>(weights),
                       nullptr,                            static_cast<const int*>(order),
                       static_cast<const int4*>(tiles),    static_cast<__nv_bfloat16*>(out),
                       limit, slots, n, k, 0, 0};
  const auto on = static_cast<cudaStream_t>(stream);
  return gate_up ? start_many<true>(a, processors, on) : start_many<false>(a, processors, on);
}

// x: [rows, k] bf16 -> out: [rows, k] E4M3 in the order of `store_quarter`, scale: [rows]; k a
// multiple of 32, at most 5,120.
extern "C" int quantise_many(const void* x, void* out, void* scale, int rows, int k, void* stream) {
  const auto start = k <= 2560 ? quantise_rows<10> : quantise_rows<20>;
  start<<<(rows + 3) / 4, 128, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(x), static_cast<uint8_t*>(out), static_cast<float*>(scale), rows,
      k);
  return cudaGetLastError();
}

// The same for a list of pairs that are not sorted, x in bf16; k at most 5,120.
extern "C" int product_few(const void* x, const void* data, const void* exponents,
                           const void* row_scale, const void* weights, const void* ids, void* out,
                           float limit, int slots, int n, int k, int first, int experts, int pairs,
                           int gate_up, void* stream) {
  const Arguments a = {static_cast<const uint8_t*>(x),     nullptr,
                       static_cast<const uint8_t*>(data),  static_cast<const int*>(exponents),
                       static_cast<const float*>(row_scale), static_cast<const float*>(weights),
                       static_cast<const int*>(ids),       nullptr,
                       nullptr,                            static_cast<__nv_bfloat16*>(out),
                       limit, slots, n, k, first, experts};
  const auto on = static_cast<cudaStream_t>(stream);
  return gate_up ? start_few<true>(a, pairs, on) : start_few<false>(a, pairs, on);
}
