// The kernels by what they are compiled for; each source file instantiates some of them, so that
// they build side by side.
#ifndef KVP_CUDA_KERNELS_H
#define KVP_CUDA_KERNELS_H

#include <cstdint>

#include "cuda/params.h"

namespace kvp::cuda {

using Kernel = void (*)(Params);

// Scores and, in an eviction, finishes rows: by the 16-bit format of the products and the padded
// width of the policy's hidden layers.
Kernel evict_kernel_bf16(int32_t hidden);  // bf16 and fp32 caches
Kernel evict_kernel_fp16(int32_t hidden);

Kernel finish_kernel();        // select, compact, evict by given scores
Kernel finish_model_kernel();  // the second launch of KVP_MODEL

}  // namespace kvp::cuda

#endif  // KVP_CUDA_KERNELS_H
