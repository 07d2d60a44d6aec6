// Scores the entries of one chunk of a row's slots.
//
// The chunk first lists the slots that want a score: valid ones, and where the caller keeps scores
// only those without. So padding and what was scored before cost no arithmetic, and a decode step
// scores its one new entry. Warps then take 16 listed entries at a time.
//
// Reads of K and V are ordinary loads: what compaction writes later is memory that was read here.
#ifndef KVP_CUDA_CHUNK_CUH
#define KVP_CUDA_CHUNK_CUH

#include <cstdint>

#include "cuda/score.cuh"
#include "cuda/validity.cuh"

namespace kvp::cuda {

// Lists the chunk's slots to score, in shared memory, and returns their number. What has a score in
// `known` keeps it, the rest becomes NaN.
__device__ inline int32_t list_unscored(const Params& p, const Chunk& chunk, Block& block,
                                        Scores known, int32_t* slots) {
  const Positions pos = positions_of(p, chunk.row);
  const int32_t length = length_at(p, chunk.row);
  const int64_t end = chunk.end;
  // Only past the length can a positioned entry be padding, and only then its rank matters.
  const bool ranked = end > length;
  int32_t rank = ranked ? find_valid(block, pos, chunk.begin, length).count : 0;
  int32_t count = 0;
  for (int64_t base = chunk.begin; base < end; base += kBlockSlots) {
    const int64_t first = base + threadIdx.x * kThreadSlots;
    uint32_t valid = positioned(pos, first, end);
    if (ranked) {
      int32_t in_block;
      int32_t before = rank + block.exclusive_sum(__popc(valid), in_block);
      rank += in_block;
      for (int i = 0; i < kThreadSlots; ++i) {
        if (valid >> i & 1 && before++ >= length) valid &= ~(1u << i);
      }
    }
    uint32_t wanted = 0;
    for (int i = 0; i < kThreadSlots && first + i < end; ++i) {
      const bool is_valid = valid >> i & 1;
      const float score = is_valid && known.data != nullptr ? known[first + i] : no_score();
      chunk.out[first + i] = score;
      if (is_valid && score != score) wanted |= 1u << i;
    }
    int32_t in_block;
    int32_t at = count + block.exclusive_sum(__popc(wanted), in_block);
    for (int i = 0; i < kThreadSlots; ++i) {
      if (wanted >> i & 1) slots[at++] = static_cast<int32_t>(first) + i;
    }
    count += in_block;
  }
  __syncthreads();
  return count;
}

// Scores what is listed.
template <class Half, int kHidden>
__device__ __forceinline__ void score_listed(const Params& p, const ScoreMemory<kHidden>& memory,
                                             WeightStream<kHidden>& weights) {
  using S = Shape<kHidden>;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarp;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / kWarp;
#pragma unroll 1
  for (int32_t tile = 0; tile < memory.chunk->count; tile += kTileEntries) {
    const int32_t first = tile + warp / S::kSharers * S::kWarpEntries;
    // A wide policy's warps turn the ring together.
    if (!S::kIsWide && first >= memory.chunk->count) break;
    const LaneEntries<S::kLaneEntries> entries{p, *memory.chunk, memory.slots, first + lane / 4};
    float scores[S::kLaneEntries];
    score_entries<Half, kHidden>(entries, p.weights, memory, weights, scores);
    if (lane % 4 != 0 || warp % S::kSharers != 0) continue;
#pragma unroll
    for (int e = 0; e < S::kLaneEntries; ++e) {
      const int32_t slot = entries.slot(e);
      if (slot >= 0) memory.chunk->out[slot] = scores[e];
    }
  }
}

// Scores the chunk's slots; where `known` has scores, only those it lacks.
template <class Half, int kHidden>
__device__ void score_chunk(const Params& p, Block& block, const ScoreMemory<kHidden>& memory,
                            Scores known) {
  Chunk& chunk = *memory.chunk;
  const int32_t count = list_unscored(p, chunk, block, known, memory.slots);
  if (count == 0) return;

  const Weights& policy = p.weights;
  const int64_t head = static_cast<int64_t>(chunk.row.layer) * p.n_heads + chunk.row.head;
  const std::byte* weight_block = policy.blocks + head * policy.layout.block_bytes;
  for (int32_t i = threadIdx.x; i < policy.layout.vector_floats; i += kThreads) {
    memory.vectors[i] = reinterpret_cast<const float*>(weight_block)[i];
  }
  if (threadIdx.x == 0) {
    chunk.stages = weight_block + policy.layout.vector_floats * sizeof(float);
    chunk.count = count;
  }
  __syncthreads();
  WeightStream<kHidden> weights(memory.work, chunk.stages, policy.layout.stages);
  score_listed<Half, kHidden>(p, memory, weights);
  drain_weights();
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_CHUNK_CUH
