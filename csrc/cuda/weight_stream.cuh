// The policy's tiles in the order of their use, through shared memory.
//
// A narrow policy fits: its stages are copied once, and every warp reads them at its own pace. A
// wide one goes through a ring of stages that is refilled while it is read: a warp that comes to a
// new stage waits until all have left the one before, whose place the stage after the last pending
// one then takes. The last stage is followed by the first, for the next entries.
#ifndef KVP_CUDA_WEIGHT_STREAM_CUH
#define KVP_CUDA_WEIGHT_STREAM_CUH

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/shape.cuh"

namespace kvp::cuda {

// Copies a stage into its place in shared memory, by all threads.
__device__ __forceinline__ void fetch_stage(const std::byte* stages, int32_t stage, std::byte* to) {
  const std::byte* from = stages + static_cast<int64_t>(stage) * kStageBytes;
#pragma unroll
  for (int32_t i = 0; i < kStageBytes / (kThreads * 16); ++i) {
    const int32_t at = (i * kThreads + static_cast<int32_t>(threadIdx.x)) * 16;
    cp_async_16(to + at, from + at);
  }
  cp_async_commit();
}

// Gives each warp its tiles, 8 at a time. All threads construct it; `stages` are in global memory.
template <int kHidden>
class WeightStream;

template <>
class WeightStream<kNarrow> {
 public:
  static constexpr int kTiles = kNarrow / kTileOutputs;

  __device__ WeightStream(std::byte* shared, const std::byte* const& stages, int32_t n_stages)
      : shared_(shared) {
#pragma unroll 1
    for (int32_t stage = 0; stage < n_stages; ++stage) {
      fetch_stage(stages, stage, shared + stage * kStageBytes);
    }
    cp_async_wait<0>();
    __syncthreads();
  }

  // This lane's parts of the next tiles, kWarp elements apart.
  __device__ __forceinline__ const uint4* next() {
    const std::byte* at = shared_ + tile_ * kTileBytes;
    tile_ += kTiles;
    return reinterpret_cast<const uint4*>(at) + threadIdx.x % kWarp;
  }

  // After the last tile: from the first one again.
  __device__ void rewind() { tile_ = 0; }

 private:
  std::byte* shared_;
  int32_t tile_ = 0;
};

template <>
class WeightStream<kWide> {
 public:
  static constexpr int kTiles = kStageTiles / Shape<kWide>::kSharers;

  __device__ WeightStream(std::byte* ring, const std::byte* const& stages, int32_t n_stages)
      : ring_(ring), stages_(stages), n_stages_(n_stages) {
#pragma unroll 1
    for (int32_t slot = 0; slot < kRingStages - 1; ++slot) {
      fetch_stage(stages_, slot, ring_ + slot * kStageBytes);
    }
  }

  // As above, until the next call; by all threads.
  __device__ __forceinline__ const uint4* next() {
    cp_async_wait<kRingStages - 2>();
    __syncthreads();
    const int32_t left = slot_ >= 0 ? slot_ : kRingStages - 1;
    fetch_stage(stages_, to_fetch_, ring_ + left * kStageBytes);
    to_fetch_ = to_fetch_ + 1 < n_stages_ ? to_fetch_ + 1 : 0;
    slot_ = slot_ + 1 < kRingStages ? slot_ + 1 : 0;
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / kWarp;
    const std::byte* at =
        ring_ + slot_ * kStageBytes + warp % Shape<kWide>::kSharers * kTiles * kTileBytes;
    return reinterpret_cast<const uint4*>(at) + threadIdx.x % kWarp;
  }

  __device__ void rewind() {}

 private:
  std::byte* ring_;
  const std::byte* const& stages_;  // stays where it is: in shared memory, not in registers
  int32_t n_stages_;
  int32_t to_fetch_ = kRingStages - 1;
  int32_t slot_ = -1;  // of the current stage in the ring
};

// When the block is done with the weights: nothing is on its way into shared memory.
__device__ inline void drain_weights() {
  cp_async_wait<0>();
  __syncthreads();
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_WEIGHT_STREAM_CUH
