// Entries as the left operand of a tensor-core product: 16 of them, 32 channels at a time. Lane 4 g
// + q holds channels 8 q .. 8 q + 7 of entries g and g + 8; the weights' tiles are packed in the
// same order of channels, so an entry's part is one load of 16 bytes, and the four lanes of an
// entry read two whole sectors of memory.
#ifndef KVP_CUDA_ENTRIES_CUH
#define KVP_CUDA_ENTRIES_CUH

#include <cstdint>

#include "cuda/ptx/half.cuh"
#include "cuda/ptx/opaque.cuh"
#include "cuda/ptx/words.cuh"
#include "cuda/rows.cuh"

namespace kvp::cuda {

// 8 channels in the 16-bit format of the product, from elements of it or of fp32, which are
// rounded.
template <class Half>
__device__ __forceinline__ uint4 load_channels(const std::byte* at, bool is_fp32) {
  const auto* words = reinterpret_cast<const uint4*>(at);
  const uint4 first = load_word(words);
  if (!is_fp32) return first;
  const uint4 second = load_word(words + 1);
  const auto round = [](uint32_t low, uint32_t high) {
    return pack<Half>(__uint_as_float(low), __uint_as_float(high));
  };
  return make_uint4(round(first.x, first.y), round(first.z, first.w), round(second.x, second.y),
                    round(second.z, second.w));
}

// The first `count` of 8 channels, from the address of any element; the others are 0. One by one:
// the rare path must not cost the common one registers.
template <class Half>
__device__ __forceinline__ uint4 load_some_channels(const std::byte* at, bool is_fp32,
                                                    int32_t count) {
  uint64_t packed[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t in_half = count - 4 * half < 4 ? count - 4 * half : 4;
#pragma unroll 1
    for (int32_t i = 0; i < in_half; ++i) {
      const int32_t channel = 4 * half + i;
      const uint32_t bits = is_fp32 ? pack<Half>(reinterpret_cast<const float*>(at)[channel], 0.0f)
                                    : reinterpret_cast<const uint16_t*>(at)[channel];
      packed[half] |= static_cast<uint64_t>(bits) << (16 * i);
    }
  }
  return make_uint4(static_cast<uint32_t>(packed[0]), static_cast<uint32_t>(packed[0] >> 32),
                    static_cast<uint32_t>(packed[1]), static_cast<uint32_t>(packed[1] >> 32));
}

// What the first layer reads of an entry.
enum Input : int32_t { kValue, kKey, kPosition, kInputs };

// This lane's parts of kCount entries, in one of the inputs.
template <int kCount>
struct EntryRows {
  const std::byte* rows[kCount];  // channel 0; nullptr for no entry
  int32_t channels;
  int32_t blocks;  // of 32 channels
  bool is_fp32;
  bool aligned;  // rows are at multiples of 16 bytes

  // Channels [32 block, 32 block + 32) of one entry, this lane's part.
  template <class Half>
  __device__ __forceinline__ uint4 load(int which, int32_t block) const {
    const int32_t first = block * kTileInputs + static_cast<int32_t>(threadIdx.x) % 4 * 8;
    const int32_t left = channels - first;
    const std::byte* at = rows[which];
    if (at == nullptr || left <= 0) return make_uint4(0, 0, 0, 0);
    at += static_cast<int64_t>(first) * (is_fp32 ? 4 : 2);
    return aligned && left >= 8 ? load_channels<Half>(at, is_fp32)
                                : load_some_channels<Half>(at, is_fp32, left);
  }
};

// What a block scores; in shared memory, since it is needed only now and then.
struct Chunk {
  Row row;
  int32_t count;  // entries listed
  int64_t begin;  // slots
  int64_t end;
  Scores out;
  const std::byte* stages;  // the policy's tiles
};
static_assert(sizeof(Chunk) == kChunkBytes);

// The entries that a lane helps to score: those listed at first, first + 8, ... Addresses are
// computed when an input is read, which costs less than the registers to keep them.
template <int kCount>
struct LaneEntries {
  const Params& p;
  const Chunk& chunk;
  const int32_t* list;
  int32_t first;

  // < 0 for no entry.
  __device__ __forceinline__ int32_t slot(int which) const {
    const int32_t index = first + 8 * which;
    return index < chunk.count ? list[index] : -1;
  }

  __device__ __forceinline__ EntryRows<kCount> of(Input input) const {
    return input == kPosition ? positions() : cached(input);
  }

 private:
  __device__ __forceinline__ EntryRows<kCount> cached(Input input) const {
    const Row row{opaque(chunk.row.layer), chunk.row.batch, chunk.row.head};
    const Layer& layer = p.layers[row.layer];
    const bool is_key = input == kKey;
    const View& view = is_key ? layer.k : layer.v;
    const std::byte* data = row_data(view, p.element_bytes, row);
    EntryRows<kCount> entries{{},
                              is_key ? p.head_dim_k : p.head_dim_v,
                              is_key ? p.weights.layout.blocks_k : p.weights.layout.blocks_v,
                              p.element_bytes == 4,
                              is_key ? layer.aligned_k : layer.aligned_v};
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int32_t at = slot(e);
      entries.rows[e] = at < 0 ? nullptr : data + at * view.stride_slot * p.element_bytes;
    }
    return entries;
  }

  __device__ __forceinline__ EntryRows<kCount> positions() const {
    const Weights& policy = p.weights;
    const Row row{opaque(chunk.row.layer), chunk.row.batch, chunk.row.head};
    const int64_t row_bytes = policy.layout.position_row_bytes;
    const int64_t head = static_cast<int64_t>(row.layer) * p.n_heads + row.head;
    const std::byte* table = policy.positions + head * policy.positions_per_head;
    const Positions pos = positions_of(p, row);
    EntryRows<kCount> entries{
        {}, static_cast<int32_t>(row_bytes / 2), policy.layout.blocks_p, false, true};
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int32_t at = slot(e);
      entries.rows[e] = nullptr;
      if (at < 0 || policy.layout.blocks_p == 0) continue;
      const int64_t last = policy.position_rows - 1;
      const int64_t position = pos[at];
      entries.rows[e] = table + (position < last ? position : last) * row_bytes;
    }
    return entries;
  }
};

}  // namespace kvp::cuda

#endif  // KVP_CUDA_ENTRIES_CUH
