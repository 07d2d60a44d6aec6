// Scores as 32-bit keys that order as the documented rank does:
// padding < NaN < -inf < ... < -0 == +0 < ... < +inf < pinned.
#ifndef KVP_CUDA_KEYS_CUH
#define KVP_CUDA_KEYS_CUH

#include <cstdint>

#include "cuda/ptx/words.cuh"
#include "cuda/validity.cuh"

namespace kvp::cuda {

constexpr uint32_t kPaddingKey = 0;
constexpr uint32_t kPinnedKey = 0xFFFFFFFFu;

__device__ __forceinline__ uint32_t score_key(float score) {
  constexpr uint32_t kSignBit = 0x80000000u, kInfinityBits = 0x7F800000u, kNanKey = 1;
  const uint32_t bits = __float_as_uint(score);
  const uint32_t magnitude = bits & ~kSignBit;
  if (magnitude > kInfinityBits) return kNanKey;
  // Negative numbers descend with their magnitude; -0 meets +0 at the middle.
  return bits & kSignBit ? kSignBit - magnitude : kSignBit + magnitude;
}

// Keys [first, first + kThreadSlots) of a row, whose memory goes on to a whole number of them; what
// it holds past the row's end is no key. Two words at once: selection waits for memory, not for
// instructions.
__device__ __forceinline__ void load_keys(const uint32_t* keys, int32_t first,
                                          uint32_t (&to)[kThreadSlots]) {
  const auto* words = reinterpret_cast<const uint4*>(keys + first);
  const uint4 low = load_word(words), high = load_word(words + 1);
  const uint32_t loaded[kThreadSlots] = {low.x,  low.y,  low.z,  low.w,
                                         high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < kThreadSlots; ++i) to[i] = loaded[i];
}

__device__ __forceinline__ void store_keys(uint32_t* keys, int32_t first,
                                           const uint32_t (&from)[kThreadSlots]) {
  auto* words = reinterpret_cast<uint4*>(keys + first);
  store_word(words, make_uint4(from[0], from[1], from[2], from[3]));
  store_word(words + 1, make_uint4(from[4], from[5], from[6], from[7]));
}

// Entries always kept: the first `sinks` and the last `recent` valid ones.
struct Pins {
  int32_t sinks;
  int32_t recent;
};

// What of the pins fits a budget: the recent window shrinks first.
__device__ __forceinline__ Pins fit_pins(const Params& p, int32_t budget) {
  const int32_t sinks = p.sinks < budget ? p.sinks : budget;
  const int32_t left = budget - sinks;
  return {sinks, p.recent < left ? p.recent : left};
}

// Writes the keys of slots [0, valid.end), those of pinned entries above all others. By all
// threads; ends with a barrier.
__device__ inline void write_keys(Block& block, const Positions& pos, const Scores& scores,
                                  const Validity& valid, const Pins& pins, uint32_t* keys) {
  int32_t rank = 0;
  for (int64_t base = 0; base < valid.end; base += kBlockSlots) {
    const int64_t first = base + threadIdx.x * kThreadSlots;
    const uint32_t bits = positioned(pos, first, valid.end);
    int32_t in_block;
    int32_t at = rank + block.exclusive_sum(__popc(bits), in_block);
    rank += in_block;
    if (first >= valid.end) continue;
    uint32_t found[kThreadSlots];
#pragma unroll
    for (int i = 0; i < kThreadSlots; ++i) {
      found[i] = bits >> i & 1 ? score_key(scores[first + i]) : kPaddingKey;
    }
#pragma unroll
    for (int i = 0; i < kThreadSlots; ++i) {
      if (!(bits >> i & 1)) continue;
      if (at < pins.sinks || at >= valid.count - pins.recent) found[i] = kPinnedKey;
      ++at;
    }
    store_keys(keys, static_cast<int32_t>(first), found);
  }
  __syncthreads();
}

// Pins the best of keys [0, n), n > 0; of equal ones the first.
__device__ inline void pin_best(Block& block, uint32_t* keys, int32_t n) {
  const auto ordered = [](uint32_t key) { return static_cast<int32_t>(key ^ 0x80000000u); };
  int32_t most = INT32_MIN;
  int32_t slot = 0;
  for (int32_t i = threadIdx.x; i < n; i += kThreads) {
    if (ordered(keys[i]) <= most) continue;
    most = ordered(keys[i]);
    slot = i;
  }
  const int32_t best = block.max(most);
  const int32_t first = -block.max(most == best ? -slot : INT32_MIN + 1);
  if (threadIdx.x == 0) keys[first] = kPinnedKey;
  __syncthreads();
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_KEYS_CUH
