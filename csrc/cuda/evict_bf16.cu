// The kernels that score bf16 and fp32 caches.
#include "cuda/evict_kernel.cuh"
#include "cuda/kernels.h"

namespace kvp::cuda {

Kernel evict_kernel_bf16(int32_t hidden) { return choose_evict_kernel<Bf16>(hidden); }

}  // namespace kvp::cuda
