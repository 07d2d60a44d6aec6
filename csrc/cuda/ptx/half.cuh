// The two 16-bit formats that tensor cores multiply, two numbers to a register.
#ifndef KVP_CUDA_PTX_HALF_CUH
#define KVP_CUDA_PTX_HALF_CUH

#include <cuda_runtime.h>

#include <cstdint>

namespace kvp::cuda {

struct Bf16 {};
struct Fp16 {};

// Two floats, rounded to nearest even; `low` goes to bits 0..15.
template <class Half>
__device__ uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack<Bf16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
__device__ __forceinline__ uint32_t pack<Fp16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PTX_HALF_CUH
