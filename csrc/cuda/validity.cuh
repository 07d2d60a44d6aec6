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

// Finds the first `limit` positioned entries in slots [0, slots).
__device__ inline Validity find_valid(Block& block, const Positions& pos, int64_t slots,
                                      int32_t limit) {
  Validity valid{0, 0};
  for (int64_t base = 0; base < slots && valid.count < limit; base += kBlockSlots) {
    const int64_t first = base + threadIdx.x * kThreadSlots;
    const uint32_t bits = positioned(pos, first, slots);
    int32_t in_block;
    int32_t rank = valid.count + block.exclusive_sum(__popc(bits), in_block);
    int32_t end = 0;
#pragma unroll
    for (int i = 0; i < kThreadSlots; ++i) {
      if (bits >> i & 1 && rank++ < limit) end = static_cast<int32_t>(first) + i + 1;
    }
    end = block.max(end);
    if (end > valid.end) valid.end = end;
    valid.count = valid.count + in_block < limit ? valid.count + in_block : limit;
  }
  return valid;
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_VALIDITY_CUH
