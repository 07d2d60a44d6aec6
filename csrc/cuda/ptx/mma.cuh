// d += a b on tensor cores: a is 16 x 16, b 16 x 8, d 16 x 8 in fp32, spread over a warp as the
// PTX ISA lays out the fragments of mma.m16n8k16. Lane = 4 g + q holds
//   a[0], a[1]: row g, g + 8 of columns 2 q, 2 q + 1;   a[2], a[3]: of columns 2 q + 8, 2 q + 9
//   b0: column g of rows 2 q, 2 q + 1;                  b1: of rows 2 q + 8, 2 q + 9
//   d[0], d[1]: row g of columns 2 q, 2 q + 1;          d[2], d[3]: row g + 8
#ifndef KVP_CUDA_PTX_MMA_CUH
#define KVP_CUDA_PTX_MMA_CUH

#include <cuda_runtime.h>

#include "cuda/ptx/half.cuh"

namespace kvp::cuda {

template <class Half>
__device__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma_m16n8k16<Bf16>(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<Fp16>(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PTX_MMA_CUH
