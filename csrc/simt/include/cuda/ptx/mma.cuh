// Stands in for csrc/cuda/ptx/mma.cuh on the host.
#ifndef KVP_SIMT_CUDA_PTX_MMA_CUH
#define KVP_SIMT_CUDA_PTX_MMA_CUH

#include <type_traits>

#include "cuda/ptx/half.cuh"
#include "simt/device.h"

namespace kvp::cuda {

// d += a b by all lanes of a warp.
template <class Half>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  simt::Site site = simt::Site::current()) {
  static_assert(std::is_same_v<Half, Bf16> || std::is_same_v<Half, Fp16>);
  constexpr auto kFormat =
      std::is_same_v<Half, Bf16> ? simt::HalfFormat::kBf16 : simt::HalfFormat::kFp16;
  simt::multiply_fragments(kFormat, d, a, b0, b1, site);
}

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_MMA_CUH
