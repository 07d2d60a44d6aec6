// What the threads of a block compute together.
#ifndef KVP_CUDA_BLOCK_CUH
#define KVP_CUDA_BLOCK_CUH

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/params.h"
#include "cuda/shared_memory.cuh"

namespace kvp::cuda {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

// Slots that a thread takes at a time when a block walks over a row; they are consecutive, so that
// ascending threads hold ascending slots.
constexpr int kThreadSlots = 8;
constexpr int kBlockSlots = kThreads * kThreadSlots;

// Prefix sums and broadcasts over a block. All threads call each function, and every function
// ends with a barrier, so that what was written before it is visible after it.
class Block {
 public:
  __device__ explicit Block(SharedMemory& shared)
      : sums_(shared.take<int32_t>(kWarps)), word_(shared.take<int32_t>(1)) {}

  // The sum of the values of all lower threads; `total` becomes that of all.
  __device__ int32_t exclusive_sum(int32_t value, int32_t& total) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    int32_t sum = value;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += lower;
    }
    if (lane == kWarp - 1) sums_[warp] = sum;
    __syncthreads();
    int32_t before = 0;
    total = 0;
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) before += sums_[i];
      total += sums_[i];
    }
    __syncthreads();
    return before + sum - value;
  }

  // The largest of all threads' values.
  __device__ int32_t max(int32_t value) {
    const int32_t of_warp = __reduce_max_sync(kAllLanes, value);
    if (threadIdx.x % kWarp == 0) sums_[threadIdx.x / kWarp] = of_warp;
    __syncthreads();
    int32_t most = sums_[0];
    for (int i = 1; i < kWarps; ++i) most = most < sums_[i] ? sums_[i] : most;
    __syncthreads();
    return most;
  }

  // Thread 0's value.
  __device__ int32_t broadcast(int32_t value) {
    if (threadIdx.x == 0) *word_ = value;
    __syncthreads();
    const int32_t shared = *word_;
    __syncthreads();
    return shared;
  }

 private:
  int32_t* sums_;
  int32_t* word_;
};

}  // namespace kvp::cuda

#endif  // KVP_CUDA_BLOCK_CUH
