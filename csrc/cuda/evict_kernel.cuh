// The scoring kernels as launched, one per 16-bit format and width of the policy.
#ifndef KVP_CUDA_EVICT_KERNEL_CUH
#define KVP_CUDA_EVICT_KERNEL_CUH

#include <cuda_runtime.h>

#include "cuda/evict.cuh"
#include "cuda/kernels.h"

namespace kvp::cuda {

// A wide policy's products fill the registers; two blocks of a narrow one share a processor.
template <class Half, int kHidden>
__global__ void __launch_bounds__(kThreads, kHidden == kNarrow ? 2 : 1)
    evict_kernel(const __grid_constant__ Params p) {
  score_and_finish<Half, kHidden>(p);
}

template <class Half>
Kernel choose_evict_kernel(int32_t hidden) {
  return hidden == kNarrow ? evict_kernel<Half, kNarrow> : evict_kernel<Half, kWide>;
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_EVICT_KERNEL_CUH
