// Exact selection by one block: a most-significant-digit radix search over keys finds the threshold
// and how many keys equal to it are kept; a scan in slot order then lists the kept slots, which
// makes them ascend and gives ties to the lowest slots. Nothing is sorted and nothing is cut short:
// any count, any distribution of scores. Keys are read four times, 4 bytes each.
#ifndef KVP_CUDA_SELECT_CUH
#define KVP_CUDA_SELECT_CUH

#include <cstdint>

#include "cuda/keys.cuh"

namespace kvp::cuda {

// Kept are the keys above the threshold and the first `ties` that equal it.
struct Cut {
  uint32_t threshold;
  int32_t ties;
};

// Search for the cut that keeps `wanted` >= 1 of a set of keys, which may lie in many arrays: for
// each digit clear, count every array, then narrow. All threads hold the same state.
class CutSearch {
 public:
  static constexpr int kDigits = 3;

  __device__ CutSearch(uint32_t* bins, int32_t wanted) : bins_(bins), wanted_(wanted) {}

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kBins / kThreads; ++i) bins_[i * kThreads + threadIdx.x] = 0;
    __syncthreads();
  }

  // Adds n keys to the bins. Lanes whose keys share a bin add once: scores crowd few bins.
  __device__ void count(const uint32_t* keys, int32_t n) {
    for (int32_t base = 0; base < n; base += kBlockSlots) {
      const int32_t first = base + static_cast<int32_t>(threadIdx.x) * kThreadSlots;
      uint32_t mine[kThreadSlots] = {};
      if (first < n) load_keys(keys, first, mine);
#pragma unroll
      for (int i = 0; i < kThreadSlots; ++i) {
        const uint32_t key = mine[i];
        const bool counts = first + i < n && (digit_ == 0 || key >> (shift() + width()) == prefix_);
        const uint32_t bin = counts ? key >> shift() & ((1u << width()) - 1) : kBins;
        const uint32_t peers = __match_any_sync(kAllLanes, bin);
        if (counts && __ffs(peers) - 1 == static_cast<int>(threadIdx.x) % kWarp) {
          atomicAdd(&bins_[bin], static_cast<uint32_t>(__popc(peers)));
        }
      }
    }
  }

  // Finds the bin in which the cut lies.
  __device__ void narrow(Block& block) {
    constexpr int kPerThread = kBins / kThreads;
    __syncthreads();
    // Thread t holds the bins from the top down.
    uint32_t counts[kPerThread];
    int32_t sum = 0;
    const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kPerThread;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      counts[i] = bins_[top - i];
      sum += static_cast<int32_t>(counts[i]);
    }
    int32_t total;
    int32_t above = block.exclusive_sum(sum, total);
    int32_t found = -1;
    int32_t left = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const auto in_bin = static_cast<int32_t>(counts[i]);
      if (found < 0 && above < wanted_ && above + in_bin >= wanted_) {
        found = top - i;
        left = wanted_ - above;
      }
      above += in_bin;
    }
    found = block.max(found);
    wanted_ = block.max(left);
    prefix_ = prefix_ << width() | static_cast<uint32_t>(found);
    ++digit_;
  }

  __device__ Cut cut() const { return {prefix_, wanted_}; }

 private:
  __device__ int width() const { return digit_ == 2 ? 10 : 11; }
  __device__ int shift() const { return digit_ == 0 ? 21 : digit_ == 1 ? 10 : 0; }

  uint32_t* bins_;
  int32_t wanted_;  // of the keys that share the prefix
  int digit_ = 0;
  uint32_t prefix_ = 0;  // the threshold's digits so far
};

__device__ inline Cut find_cut(Block& block, const uint32_t* keys, int32_t n, int32_t wanted,
                               uint32_t* bins) {
  CutSearch search(bins, wanted);
#pragma unroll 1
  for (int digit = 0; digit < CutSearch::kDigits; ++digit) {
    search.clear();
    search.count(keys, n);
    search.narrow(block);
  }
  return search.cut();
}

// Number of keys that equal the threshold.
__device__ inline int32_t count_ties(Block& block, const uint32_t* keys, int32_t n,
                                     uint32_t threshold) {
  int32_t of_thread = 0;
  for (int32_t base = 0; base < n; base += kBlockSlots) {
    const int32_t first = base + static_cast<int32_t>(threadIdx.x) * kThreadSlots;
    if (first >= n) break;
    uint32_t mine[kThreadSlots];
    load_keys(keys, first, mine);
#pragma unroll
    for (int i = 0; i < kThreadSlots; ++i) of_thread += first + i < n && mine[i] == threshold;
  }
  int32_t ties;
  block.exclusive_sum(of_thread, ties);
  return ties;
}

// Writes the slots of [0, n) that `kept` selects, ascending, and returns their number. `kept` gives
// the bits of kThreadSlots slots from `first` on and is called by all threads in turn. The list may
// take the place of keys that `kept` reads: what is listed goes no further than what was read.
template <class Kept>
__device__ int32_t list_slots(Block& block, int32_t n, Kept&& kept, int32_t* list) {
  int32_t count = 0;
  for (int32_t base = 0; base < n; base += kBlockSlots) {
    const int32_t first = base + static_cast<int32_t>(threadIdx.x) * kThreadSlots;
    const uint32_t bits = kept(first);
    int32_t in_block;
    int32_t at = count + block.exclusive_sum(__popc(bits), in_block);
    for (int i = 0; i < kThreadSlots; ++i) {
      if (bits >> i & 1) list[at++] = first + i;
    }
    count += in_block;
  }
  __syncthreads();
  return count;
}

__device__ inline int32_t list_kept(Block& block, const uint32_t* keys, int32_t n, Cut cut,
                                    int32_t* list) {
  int32_t ties = 0;
  return list_slots(
      block, n,
      [&](int32_t first) {
        uint32_t above = 0, equal = 0;
        uint32_t mine[kThreadSlots] = {};
        if (first < n) load_keys(keys, first, mine);
#pragma unroll
        for (int i = 0; i < kThreadSlots; ++i) {
          const bool exists = first + i < n;
          above |= static_cast<uint32_t>(exists && mine[i] > cut.threshold) << i;
          equal |= static_cast<uint32_t>(exists && mine[i] == cut.threshold) << i;
        }
        int32_t in_block;
        int32_t rank = ties + block.exclusive_sum(__popc(equal), in_block);
        ties += in_block;
        for (int i = 0; i < kThreadSlots; ++i) {
          if (equal >> i & 1 && rank++ >= cut.ties) equal &= ~(1u << i);
        }
        return above | equal;
      },
      list);
}

__device__ inline int32_t list_valid(Block& block, const Positions& pos, const Validity& valid,
                                     int32_t* list) {
  return list_slots(
      block, valid.end, [&](int32_t first) { return positioned(pos, first, valid.end); }, list);
}

// KVP_ANY: survivors below n_kept stay where they are, the others fill the holes between them,
// both ascending.
__device__ inline void fill_holes(Block& block, const int32_t* ascending, int32_t n_kept,
                                  int32_t* order) {
  for (int32_t slot = threadIdx.x; slot < n_kept; slot += kThreads) order[slot] = -1;
  __syncthreads();
  int32_t low = 0;  // survivors that stay
  for (int32_t base = 0; base < n_kept; base += kThreads) {
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    const bool stays = i < n_kept && ascending[i] < n_kept;
    if (stays) order[ascending[i]] = ascending[i];
    int32_t in_block;
    block.exclusive_sum(stays, in_block);
    low += in_block;
  }
  for (int32_t base = 0; base < n_kept; base += kThreads) {
    const int32_t slot = base + static_cast<int32_t>(threadIdx.x);
    const bool hole = slot < n_kept && order[slot] < 0;
    int32_t in_block;
    const int32_t rank = block.exclusive_sum(hole, in_block);
    if (hole) order[slot] = ascending[low + rank];
    low += in_block;
  }
  __syncthreads();
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_SELECT_CUH
