// Loads and stores of whole words of global memory, 16, 4 or 2 bytes: one instruction each, where
// the compiler might take a structure apart.
#ifndef KVP_CUDA_PTX_WORDS_CUH
#define KVP_CUDA_PTX_WORDS_CUH

#include <cuda_runtime.h>

#include <cstdint>

namespace kvp::cuda {

__device__ __forceinline__ uint4 load_word(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

__device__ __forceinline__ void store_word(uint4* to, uint4 x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

__device__ __forceinline__ uint32_t load_word(const uint32_t* from) { return *from; }
__device__ __forceinline__ void store_word(uint32_t* to, uint32_t x) { *to = x; }
__device__ __forceinline__ uint16_t load_word(const uint16_t* from) { return *from; }
__device__ __forceinline__ void store_word(uint16_t* to, uint16_t x) { *to = x; }

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PTX_WORDS_CUH
