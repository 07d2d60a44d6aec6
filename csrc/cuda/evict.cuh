// The kernels. One launch scores, selects and compacts all rows: blocks score chunks of slots, row
// after row, so that the weights in flight stay in L2; the block that finishes the last chunk of a
// row selects and compacts that row while the others go on. No block ever waits for another, so
// the order in which blocks run does not matter.
//
// Floor: K and V read once, the survivors' written once, and the policy's arithmetic
// (docs/kernel.md has the numbers).
#ifndef KVP_CUDA_EVICT_CUH
#define KVP_CUDA_EVICT_CUH

#include <cstdint>

#include "cuda/chunk.cuh"
#include "cuda/finish.cuh"

namespace kvp::cuda {

// Work item `index`: a chunk of a row.
struct Item {
  Row row;
  int64_t begin;  // its slots
  int64_t end;
};

__device__ inline Item item_at(const Params& p, int64_t index) {
  int32_t low = 0, high = p.n_layers - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (p.layers[middle].first_item <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const Layer& layer = p.layers[low];
  const auto in_layer = static_cast<int32_t>(index - layer.first_item);
  const int32_t row = in_layer / layer.chunks;
  const int64_t begin = static_cast<int64_t>(in_layer % layer.chunks) * p.chunk_slots;
  const int64_t end = begin + p.chunk_slots < layer.slots ? begin + p.chunk_slots : layer.slots;
  return {{low, row / p.n_heads, row % p.n_heads}, begin, end};
}

// Whether the row leaves entries behind, so that their scores matter. In MODEL mode only the whole
// sequence can tell.
__device__ inline bool needs_scores(const Params& p, const Row& row, Block& block) {
  if (p.mode == KVP_MODEL) return true;
  const Row counted{row.layer, row.batch, p.mode == KVP_UNION ? 0 : row.head};
  const int32_t budget = budget_at(p, counted);
  const int32_t length = length_at(p, counted);
  if (length <= budget) return false;
  return find_valid(block, positions_of(p, counted), p.layers[row.layer].slots, budget + 1).count >
         budget;
}

// Scores the block's chunk, if its row wants scores.
template <class Half, int kHidden>
__device__ __forceinline__ void score_item(const Params& p, const Item& item, Block& block,
                                           std::byte* work, SharedMemory& shared) {
  const bool only_scores = p.op == KVP_OP_SCORE;
  const Row& row = item.row;
  if (!p.layers[row.layer].present || !(only_scores || needs_scores(p, row, block))) return;
  Scores known = caller_scores(p, row);
  Scores out{p.scores + first_slot(p, row), 1};
  if (only_scores) {
    out = known;
    known.data = nullptr;
  }
  const ScoreMemory<kHidden> memory(p, work, shared);
  score_chunk<Half, kHidden>(p, row, block, memory, item.begin, item.end, known, out);
}

// Score, evict with a policy. kHidden is the padded width of the policy's hidden layers.
template <class Half, int kHidden>
__device__ void score_and_finish(const Params& p) {
  SharedMemory shared;
  Block block(shared);
  auto* work = shared.take<std::byte>(p.work_bytes);
  const auto index = static_cast<int32_t>(blockIdx.x);
  score_item<Half, kHidden>(p, item_at(p, index), block, work, shared);
  if (p.op == KVP_OP_SCORE) return;
  // Found again, since to remember it would hold registers that scoring needs.
  const Row row = item_at(p, opaque(index)).row;
  const auto chunks = static_cast<uint32_t>(p.layers[row.layer].chunks);
  if (!is_last(block, p.row_tickets + row_index(p, row), chunks)) return;
  finish(p, row, block, reinterpret_cast<uint32_t*>(work));
}

// Select, compact, evict by the caller's scores: one block per row.
__device__ inline void finish_only(const Params& p) {
  SharedMemory shared;
  Block block(shared);
  auto* work = shared.take<std::byte>(p.work_bytes);
  finish(p, row_at(p, blockIdx.x), block, reinterpret_cast<uint32_t*>(work));
}

// The second launch of MODEL: one block per row.
__device__ inline void finish_model(const Params& p) {
  SharedMemory shared;
  Block block(shared);
  finish_model_row(p, row_at(p, blockIdx.x), block);
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_EVICT_CUH
