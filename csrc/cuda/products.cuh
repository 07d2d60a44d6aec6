// A warp's products of entries with weights, in registers, and which of them a lane holds.
#ifndef KVP_CUDA_PRODUCTS_CUH
#define KVP_CUDA_PRODUCTS_CUH

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/params.h"
#include "cuda/ptx/mma.cuh"

namespace kvp::cuda {

// Products of a warp's entries with 8 kTiles outputs. Element [m][t][i] is of entry
// 16 m + 8 (i / 2) + g and output 8 t + 2 q + i % 2.
template <int kRowTiles, int kTiles>
struct Products {
  float at[kRowTiles][kTiles][4];

  // f(product, lane's entry, tile, which of its outputs 2 q and 2 q + 1)
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f(at[m][t][i], 2 * m + i / 2, t, i % 2);
      }
    }
  }

  __device__ __forceinline__ void clear() {
    for_each([](float& z, int, int, int) { z = 0.0f; });
  }
};

// What a lane has of a vector over the outputs of its warp.
struct LaneVector {
  const float* of_lane;

  // The first output of the warp is `first`.
  __device__ __forceinline__ LaneVector(const float* vector, int32_t first)
      : of_lane(vector + first + static_cast<int32_t>(threadIdx.x) % 4 * 2) {}

  __device__ __forceinline__ float operator()(int t, int which) const {
    return of_lane[t * kTileOutputs + which];
  }
};

// products += (32 channels of a row tile, as two left operands) x (their weights)
template <class Half, int kTiles, int kRowTiles, int kAllTiles>
__device__ __forceinline__ void multiply_tiles(Products<kRowTiles, kAllTiles>& products,
                                               const uint32_t (&operands)[kRowTiles][2][4],
                                               const uint4* tiles, int first_tile) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const uint4 weights = tiles[t * kWarp];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      mma_m16n8k16<Half>(products.at[m][first_tile + t], operands[m][0], weights.x, weights.y);
      mma_m16n8k16<Half>(products.at[m][first_tile + t], operands[m][1], weights.z, weights.w);
    }
  }
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PRODUCTS_CUH
