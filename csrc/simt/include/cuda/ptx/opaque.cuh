// Registers are no concern here.
#ifndef KVP_SIMT_CUDA_PTX_OPAQUE_CUH
#define KVP_SIMT_CUDA_PTX_OPAQUE_CUH

#include <cstdint>

namespace kvp::cuda {

inline int32_t opaque(int32_t x) { return x; }

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_OPAQUE_CUH
