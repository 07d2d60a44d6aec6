// Ranks of a row's entries (UNION): a stable least-significant-digit radix sort by one block, 8
// bits at a time. Warps count their keys by digit; a prefix sum over digits and warps gives each
// key its place, the same in every run.
#ifndef KVP_CUDA_SORT_CUH
#define KVP_CUDA_SORT_CUH

#include <cstdint>

#include "cuda/select.cuh"

namespace kvp::cuda {

constexpr int kDigitBins = 256;
static_assert(kWarps * kDigitBins == kBins && kThreads == kDigitBins);

// Moves slots from `from` (null: the identity) to `to` in the order of one digit, which descends
// as the key does. `counts` is [kWarps][kDigitBins] shared memory.
__device__ inline void sort_digit(Block& block, const uint32_t* keys, int32_t n, int shift,
                                  const int32_t* from, int32_t* to, uint32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto digit_of = [&](int32_t slot) { return ~keys[slot] >> shift & (kDigitBins - 1); };
  const auto slot_at = [&](int32_t i) { return from == nullptr ? i : from[i]; };
  const auto clear = [&] {
    for (int w = 0; w < kWarps; ++w) counts[w * kDigitBins + threadIdx.x] = 0;
    __syncthreads();
  };
  // Adds this thread's digit to its warp's count and returns how many lower lanes share it.
  const auto count = [&](bool exists, uint32_t digit) {
    const uint32_t peers = __match_any_sync(kAllLanes, exists ? digit : kDigitBins);
    const int below = __popc(peers & ((1u << lane) - 1));
    if (exists && below == 0) {
      atomicAdd(&counts[warp * kDigitBins + digit], static_cast<uint32_t>(__popc(peers)));
    }
    return below;
  };

  // Where each digit begins; thread t keeps that of digit t.
  clear();
  for (int32_t base = 0; base < n; base += kThreads) {
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    count(i < n, i < n ? digit_of(slot_at(i)) : 0);
  }
  __syncthreads();
  int32_t of_digit = 0;
  for (int w = 0; w < kWarps; ++w) {
    of_digit += static_cast<int32_t>(counts[w * kDigitBins + threadIdx.x]);
  }
  int32_t total;
  int32_t next = block.exclusive_sum(of_digit, total);

  for (int32_t base = 0; base < n; base += kThreads) {
    clear();
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    const int32_t slot = i < n ? slot_at(i) : 0;
    const uint32_t digit = i < n ? digit_of(slot) : 0;
    const int below = count(i < n, digit);
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      const auto in_warp = static_cast<int32_t>(counts[w * kDigitBins + threadIdx.x]);
      counts[w * kDigitBins + threadIdx.x] = static_cast<uint32_t>(next);
      next += in_warp;
    }
    __syncthreads();
    if (i < n) to[counts[warp * kDigitBins + digit] + below] = slot;
    __syncthreads();
  }
}

// Replaces the keys of slots [0, n) by keys that descend with their rank: by key, then by slot.
// Padding keeps its key. `order` and `scratch` hold n slots each.
__device__ inline void rank_keys(Block& block, uint32_t* keys, int32_t n, int32_t n_valid,
                                 int32_t* order, int32_t* scratch, uint32_t* counts) {
  sort_digit(block, keys, n, 0, nullptr, scratch, counts);
  sort_digit(block, keys, n, 8, scratch, order, counts);
  sort_digit(block, keys, n, 16, order, scratch, counts);
  sort_digit(block, keys, n, 24, scratch, order, counts);
  for (int32_t rank = threadIdx.x; rank < n; rank += kThreads) {
    keys[order[rank]] = rank < n_valid ? ~static_cast<uint32_t>(rank) : kPaddingKey;
  }
  __syncthreads();
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_SORT_CUH
