// Rows of a cache as kernels read them. A row is one (layer, sequence, KV head).
#ifndef KVP_CUDA_ROWS_CUH
#define KVP_CUDA_ROWS_CUH

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/params.h"

namespace kvp::cuda {

struct Row {
  int32_t layer;
  int32_t batch;
  int32_t head;
};

// Dense index of a row in [L, B, H].
__device__ __forceinline__ int64_t row_index(const Params& p, const Row& row) {
  return (static_cast<int64_t>(row.layer) * p.n_batch + row.batch) * p.n_heads + row.head;
}

__device__ __forceinline__ Row row_at(const Params& p, int64_t index) {
  const int64_t unit = index / p.n_heads;
  return {static_cast<int32_t>(unit / p.n_batch), static_cast<int32_t>(unit % p.n_batch),
          static_cast<int32_t>(index % p.n_heads)};
}

__device__ __forceinline__ std::byte* row_data(const View& view, int64_t element_bytes,
                                               const Row& row) {
  return view.data + (row.batch * view.stride_batch + row.head * view.stride_head) * element_bytes;
}

// First slot of a row in the workspace's arrays.
__device__ __forceinline__ int64_t first_slot(const Params& p, const Row& row) {
  const Layer& layer = p.layers[row.layer];
  return layer.first_slot +
         (static_cast<int64_t>(row.batch) * p.n_heads + row.head) * layer.row_slots;
}

__device__ __forceinline__ int64_t count_at(const kvp_counts& counts, const Row& row) {
  if (counts.data == nullptr) return counts.value;
  return counts.data[row.layer * counts.stride_layer + row.batch * counts.stride_batch +
                     row.head * counts.stride_head];
}

// Most entries that may be valid in a row.
__device__ __forceinline__ int32_t length_at(const Params& p, const Row& row) {
  const int64_t slots = p.layers[row.layer].slots;
  if (p.lengths.data == nullptr && p.lengths.value < 0) return static_cast<int32_t>(slots);
  const int64_t length = count_at(p.lengths, row);
  return static_cast<int32_t>(length < 0 ? 0 : length < slots ? length : slots);
}

// Entries a row of PER_HEAD or UNION keeps if it holds as many.
__device__ __forceinline__ int32_t budget_at(const Params& p, const Row& row) {
  const int64_t budget = count_at(p.budget, row);
  return static_cast<int32_t>(budget < 1 ? 1 : budget < INT32_MAX ? budget : INT32_MAX);
}

// The positions of one row. Without data every slot counts as positioned.
struct Positions {
  const std::byte* data;
  int64_t stride;
  bool is_int64;

  __device__ __forceinline__ int64_t operator[](int64_t slot) const {
    if (data == nullptr) return slot;
    return is_int64 ? reinterpret_cast<const int64_t*>(data)[slot * stride]
                    : reinterpret_cast<const int32_t*>(data)[slot * stride];
  }
};

__device__ __forceinline__ Positions positions_of(const Params& p, const Row& row) {
  const View& pos = p.layers[row.layer].pos;
  if (pos.data == nullptr) return {nullptr, 1, true};
  return {row_data(pos, p.pos_is_int64 ? 8 : 4, row), pos.stride_slot, p.pos_is_int64};
}

// What stands where an entry has no score: a NaN.
__device__ __forceinline__ float no_score() { return __uint_as_float(0x7FC00000u); }

// Scores of one row, by slot.
struct Scores {
  float* data;
  int64_t stride;

  __device__ __forceinline__ float& operator[](int64_t slot) const { return data[slot * stride]; }
};

__device__ __forceinline__ Scores caller_scores(const Params& p, const Row& row) {
  const View& scores = p.layers[row.layer].scores;
  if (scores.data == nullptr) return {nullptr, 0};
  return {reinterpret_cast<float*>(row_data(scores, 4, row)), scores.stride_slot};
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_ROWS_CUH
