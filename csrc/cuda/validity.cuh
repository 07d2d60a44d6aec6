// Which slots of a row hold valid entries: those with a position >= 0 that fewer than the row's
// length of such precede.
#ifndef KVP_CUDA_VALIDITY_CUH
#define KVP_CUDA_VALIDITY_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/rows.cuh"

namespace kvp::cuda {

// Valid entries are the `count` positioned ones in slots [0, end).
struct Validity {
  int32_t count;
  int32_t end;
};

// Bit i: whether slot first + i holds a positioned entry.
__device__ __forceinline__ uint32_t positioned(const Positions& pos, int64_t first, int64_t end) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kThreadSlots; ++i) {
    if (first + i < end && pos[first + i] >= 0) bits |= 1u << i;
  }
  return bits;
}

// Finds the first `limit` positioned entries in slots [0, slots). Threads agree about many slots at
// a time: only where the limit lies do ranks matter.
__device__ inline Validity find_valid(Block& block, const Positions& pos, int64_t slots,
                                      int32_t limit) {
  constexpr int kSteps = 8;
  const int64_t mine = threadIdx.x * kThreadSlots;
  int32_t count = 0;
  int32_t end = 0;  // of what this thread saw
  int64_t base = 0;
  for (; base < slots && count < limit; base += kSteps * kBlockSlots) {
    int32_t of_thread = 0;
    int32_t last = end;
#pragma unroll 1
    for (int64_t first = base + mine; first < slots && first < base + kSteps * kBlockSlots;
         first += kBlockSlots) {
      const uint32_t bits = positioned(pos, first, slots);
      of_thread += __popc(bits);
      if (bits != 0) last = static_cast<int32_t>(first) + kWarp - __clz(static_cast<int>(bits));
    }
    int32_t found;
    block.exclusive_sum(of_thread, found);
    if (found > limit - count) break;
    count += found;
    end = last;
  }
#pragma unroll 1
  for (; base < slots && count < limit; base += kBlockSlots) {
    const int64_t first = base + mine;
    const uint32_t bits = positioned(pos, first, slots);
    int32_t in_block;
    int32_t rank = count + block.exclusive_sum(__popc(bits), in_block);
#pragma unroll
    for (int i = 0; i < kThreadSlots; ++i) {
      if (bits >> i & 1 && rank++ < limit) end = static_cast<int32_t>(first) + i + 1;
    }
    count = in_block < limit - count ? count + in_block : limit;
  }
  return {count, block.max(end)};
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_VALIDITY_CUH
