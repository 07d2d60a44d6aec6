// Stands in for csrc/cuda/ptx/tanh.cuh on the host.
#ifndef KVP_SIMT_CUDA_PTX_TANH_CUH
#define KVP_SIMT_CUDA_PTX_TANH_CUH

#include <cmath>

namespace kvp::cuda {

// As exact as the host's library: the device's error is no part of what kernels may rely on.
inline float fast_tanh(float x) { return tanhf(x); }

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_TANH_CUH
