// Keeps the compiler from computing ahead.
#ifndef KVP_CUDA_PTX_OPAQUE_CUH
#define KVP_CUDA_PTX_OPAQUE_CUH

#include <cuda_runtime.h>

#include <cstdint>

namespace kvp::cuda {

// The same number, of which the compiler knows nothing: what depends on it is computed here and not
// before a loop, where it would hold registers that the loop needs.
__device__ __forceinline__ int32_t opaque(int32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PTX_OPAQUE_CUH
