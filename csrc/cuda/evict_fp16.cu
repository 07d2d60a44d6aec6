// The kernels that score fp16 caches.
#include "cuda/evict_kernel.cuh"
#include "cuda/kernels.h"

namespace kvp::cuda {

Kernel evict_kernel_fp16(int32_t hidden) { return choose_evict_kernel<Fp16>(hidden); }

}  // namespace kvp::cuda
