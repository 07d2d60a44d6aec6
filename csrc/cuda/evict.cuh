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

// The chunk that is work item `index`, but for what only its scoring tells.
__device__ inline Chunk chunk_at(const Params& p, int64_t index) {
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
  const int32_t in_batch = in_layer / layer.chunks;
  const Row row{low, in_batch / p.n_heads, in_batch % p.n_heads};
  const int64_t begin = static_cast<int64_t>(in_layer % layer.chunks) * p.chunk_slots;
  const int64_t end = begin + p.chunk_slots < layer.slots ? begin + p.chunk_slots : layer.slots;
  const Scores out =
      p.op == KVP_OP_SCORE ? caller_scores(p, row) : Scores{p.scores + first_slot(p, row), 1};
  return {row, 0, begin, end, out, nullptr};
}

// Whether the row leaves entries behind, so that their scores matter. Every block of a row asks, so
// it is told by two slots where it can be: a row of more than `budget` entries with padding only at
// its ends has one of them at a distance of `budget` from the other end. A row that holds an entry
// there and still keeps everything, with padding inside, is scored for nothing. In MODEL mode only
// the whole sequence can tell.
__device__ inline bool needs_scores(const Params& p, const Row& row, Block& block) {
  if (p.mode == KVP_MODEL) return true;
  const Row counted{row.layer, row.batch, p.mode == KVP_UNION ? 0 : row.head};
  const int32_t budget = budget_at(p, counted);
  const int32_t length = length_at(p, counted);
  if (length <= budget) return false;
  const Positions pos = positions_of(p, counted);
  const int64_t slots = p.layers[row.layer].slots;
  if (pos[budget] >= 0 || pos[slots - 1 - budget] >= 0) return true;
  return find_valid(block, pos, slots, budget + 1).count > budget;
}

// Scores the block's chunk, if its row wants scores.
template <class Half, int kHidden>
__device__ __forceinline__ void score_item(const Params& p, Block& block,
                                           const ScoreMemory<kHidden>& memory) {
  const bool only_scores = p.op == KVP_OP_SCORE;
  const Row row = memory.chunk->row;
  if (!p.layers[row.layer].present || !(only_scores || needs_scores(p, row, block))) return;
  const Scores known = only_scores ? Scores{nullptr, 0} : caller_scores(p, row);
  score_chunk<Half, kHidden>(p, block, memory, known);
}

// Score, evict with a policy. kHidden is the padded width of the policy's hidden layers.
template <class Half, int kHidden>
__device__ void score_and_finish(const Params& p) {
  SharedMemory shared;
  Block block(shared);
  const ScoreMemory<kHidden> memory(p, shared);
  if (threadIdx.x == 0) *memory.chunk = chunk_at(p, blockIdx.x);
  __syncthreads();
  score_item<Half, kHidden>(p, block, memory);
  if (p.op == KVP_OP_SCORE) return;
  __syncthreads();
  const Row row = memory.chunk->row;
  const auto chunks = static_cast<uint32_t>(p.layers[row.layer].chunks);
  if (!is_last(block, p.row_tickets + row_index(p, row), chunks)) return;
  finish(p, row, block, reinterpret_cast<uint32_t*>(memory.work));
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
