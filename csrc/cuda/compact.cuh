// Moves a row's survivors to its front, in place, by one block.
//
// Why no entry is overwritten before it was read. Survivor i comes from slot s_i.
//   Stable order: s_i ascends, so s_i >= i. The block moves survivors in ascending order, a batch
//   at a time: all of a batch is loaded into registers, a barrier, then it is stored. A batch
//   stores to slots up to its last survivor j; whatever a later batch loads lies in a slot s_i >= i
//   > j, or belongs to survivor j itself, whose slot is above j unless it stays. So later loads
//   need no barrier after earlier stores, and may begin before them. Any order: survivors that move
//   come from slots at or above the new length and go below it.
//
// Floor: K and V of the survivors that move, read once and written once.
#ifndef KVP_CUDA_COMPACT_CUH
#define KVP_CUDA_COMPACT_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/words.cuh"
#include "cuda/rows.cuh"

namespace kvp::cuda {

// Moves n entries of `words` words each; strides in words.
template <class Word>
__device__ void move_words(Word* row, int64_t stride, int32_t words, const int32_t* kept,
                           int32_t n) {
  constexpr int kAhead = 8;                 // words of a thread that are under way together
  int32_t first_entry = 0, first_word = 0;  // of the batch
  while (first_entry < n) {
    Word moving[kAhead];
    int64_t to[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t at = first_word + i * kThreads + static_cast<int32_t>(threadIdx.x);
      const int32_t entry = first_entry + at / words;
      const int32_t word = at % words;
      to[i] = -1;
      if (entry >= n) continue;
      const int32_t from = kept[entry];
      if (from == entry) continue;
      moving[i] = load_word(row + from * stride + word);
      to[i] = entry * stride + word;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (to[i] >= 0) store_word(row + to[i], moving[i]);
    }
    first_word += kThreads * kAhead;
    first_entry += first_word / words;
    first_word %= words;
  }
}

// One of what an entry consists of: K, V, its position, its score.
struct Plane {
  std::byte* row;
  int64_t stride_bytes;
  int32_t entry_bytes;
};

__device__ __forceinline__ Plane plane_of(const View& view, int32_t element_bytes, int32_t channels,
                                          const Row& row) {
  return {row_data(view, element_bytes, row), view.stride_slot * element_bytes,
          channels * element_bytes};
}

// In the widest words that the address, the stride and the size of an entry are multiples of.
__device__ inline void move_plane(const Plane& plane, const int32_t* kept, int32_t n) {
  const auto all = reinterpret_cast<uintptr_t>(plane.row) |
                   static_cast<uintptr_t>(plane.stride_bytes) |
                   static_cast<uintptr_t>(plane.entry_bytes);
  const auto move = [&](auto* words) {
    constexpr int kBytes = sizeof(*words);
    move_words(words, plane.stride_bytes / kBytes, plane.entry_bytes / kBytes, kept, n);
  };
  if (all % 16 == 0) {
    move(reinterpret_cast<uint4*>(plane.row));
  } else if (all % 4 == 0) {
    move(reinterpret_cast<uint32_t*>(plane.row));
  } else {
    move(reinterpret_cast<uint16_t*>(plane.row));
  }
}

// What stands past the new length must not look alive to the next call.
template <class T>
__device__ void fill_tail(std::byte* row, int64_t stride, int64_t begin, int64_t end, T value) {
  for (int64_t slot = begin + threadIdx.x; slot < end; slot += kThreads) {
    reinterpret_cast<T*>(row)[slot * stride] = value;
  }
}

// K, V, per-head positions and the caller's scores of one row. `fresh` are all of its entries'
// scores if they were computed (null: the caller's are moved as they are).
__device__ inline void compact_row(const Params& p, const Row& row, const int32_t* kept,
                                   int32_t n_kept, const float* fresh) {
  const Layer& layer = p.layers[row.layer];
  const bool moves_positions = layer.pos.data != nullptr && !layer.shares_positions;
  const bool has_scores = layer.scores.data != nullptr;
  const int32_t pos_bytes = p.pos_is_int64 ? 8 : 4;
#pragma unroll 1
  for (int which = 0; which < 4; ++which) {
    if (which == 2 && !moves_positions) continue;
    if (which == 3 && (!has_scores || fresh != nullptr)) continue;
    move_plane(which == 0   ? plane_of(layer.k, p.element_bytes, p.head_dim_k, row)
               : which == 1 ? plane_of(layer.v, p.element_bytes, p.head_dim_v, row)
               : which == 2 ? plane_of(layer.pos, pos_bytes, 1, row)
                            : plane_of(layer.scores, sizeof(float), 1, row),
               kept, n_kept);
  }
  if (moves_positions) {
    std::byte* pos = row_data(layer.pos, pos_bytes, row);
    if (p.pos_is_int64) {
      fill_tail<int64_t>(pos, layer.pos.stride_slot, n_kept, layer.slots, -1);
    } else {
      fill_tail<int32_t>(pos, layer.pos.stride_slot, n_kept, layer.slots, -1);
    }
  }
  if (has_scores) {
    const Scores scores = caller_scores(p, row);
    if (fresh != nullptr) {
      for (int32_t i = threadIdx.x; i < n_kept; i += kThreads) scores[i] = fresh[kept[i]];
    }
    fill_tail(reinterpret_cast<std::byte*>(scores.data), scores.stride, n_kept, layer.slots,
              no_score());
  }
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_COMPACT_CUH
