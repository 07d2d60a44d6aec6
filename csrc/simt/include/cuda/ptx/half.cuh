// Stands in for csrc/cuda/ptx/half.cuh on the host.
#ifndef KVP_SIMT_CUDA_PTX_HALF_CUH
#define KVP_SIMT_CUDA_PTX_HALF_CUH

#include <cstdint>

#include "simt/half.h"

namespace kvp::cuda {

struct Bf16 {};
struct Fp16 {};

// Two floats, rounded to nearest even; `low` goes to bits 0..15.
template <class Half>
uint32_t pack(float low, float high);

template <>
inline uint32_t pack<Bf16>(float low, float high) {
  return simt::float_to_bf16(low) | static_cast<uint32_t>(simt::float_to_bf16(high)) << 16;
}

template <>
inline uint32_t pack<Fp16>(float low, float high) {
  return simt::float_to_fp16(low) | static_cast<uint32_t>(simt::float_to_fp16(high)) << 16;
}

template <class Half>
float unpack_low(uint32_t packed);

template <>
inline float unpack_low<Bf16>(uint32_t packed) {
  return simt::bf16_to_float<float>(packed & 0xFFFF);
}

template <>
inline float unpack_low<Fp16>(uint32_t packed) {
  return simt::fp16_to_float<float>(packed & 0xFFFF);
}

template <class Half>
float unpack_high(uint32_t packed) {
  return unpack_low<Half>(packed >> 16);
}

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_HALF_CUH
