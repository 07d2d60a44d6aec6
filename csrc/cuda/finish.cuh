// What the last block of a row does: select the survivors, report them, move them.
#ifndef KVP_CUDA_FINISH_CUH
#define KVP_CUDA_FINISH_CUH

#include <cstdint>

#include "cuda/compact.cuh"
#include "cuda/ptx/opaque.cuh"
#include "cuda/ptx/ticket.cuh"
#include "cuda/select.cuh"
#include "cuda/sort.cuh"

namespace kvp::cuda {

// The block takes one ticket of `counter`, which `takers` blocks share; true for the last, which
// then sees what the others wrote.
__device__ inline bool is_last(Block& block, uint32_t* counter, uint32_t takers) {
  __syncthreads();
  const bool last = threadIdx.x == 0 && take_ticket(counter) + 1 == takers;
  return block.broadcast(last) != 0;
}

// ---- results -----------------------------------------------------------------------------------

template <class T>
__device__ void write_positions(const Params& p, const Row& row, const int32_t* kept,
                                int32_t n_kept) {
  T* out = reinterpret_cast<T*>(p.new_pos) + row_index(p, row) * p.capacity;
  const Positions pos = positions_of(p, row);
  for (int64_t i = threadIdx.x; i < p.capacity; i += kThreads) {
    out[i] = i < n_kept ? static_cast<T>(pos[kept[i]]) : T{-1};
  }
}

// Where the survivors' positions go beside the cache. Reads the row's positions, so it comes before
// they move.
__device__ inline void write_positions(const Params& p, const Row& row, const int32_t* kept,
                                       int32_t n_kept) {
  if (p.new_pos == nullptr) return;
  if (p.pos_is_int64) {
    write_positions<int64_t>(p, row, kept, n_kept);
  } else {
    write_positions<int32_t>(p, row, kept, n_kept);
  }
}

// Marks this row as done; the last row tells whether any was changed.
__device__ inline void count_done(const Params& p, bool changed) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (changed) atomicOr(p.any_changed, 1u);
  const auto rows = static_cast<uint32_t>(p.n_layers * p.n_batch * p.n_heads);
  if (take_ticket(p.done_ticket) + 1 == rows && p.changed != nullptr) {
    *p.changed = static_cast<int32_t>(atomicOr(p.any_changed, 0u));
  }
}

// Reports a row's survivors and moves them in an eviction. They ascend in `ascending`; a compaction
// takes them as the caller lists them.
__device__ inline void finish_row(const Params& p, const Row& row, Block& block,
                                  const Validity& valid, const int32_t* ascending, int32_t n_kept,
                                  const float* fresh) {
  const bool selects = p.op != KVP_OP_COMPACT;
  bool changes = n_kept < valid.count || valid.count != valid.end;
  const int32_t* kept = ascending;
  if (!selects) {
    int32_t moving = 0;
    for (int32_t i = threadIdx.x; i < n_kept; i += kThreads) moving |= kept[i] != i;
    changes = block.max(moving) != 0 || n_kept != valid.count;
  } else if (changes && p.order == KVP_ANY) {
    int32_t* order = p.order_slots + first_slot(p, row);
    fill_holes(block, ascending, n_kept, order);
    kept = order;
  }
  if (selects) {
    const int64_t index = row_index(p, row);
    if (threadIdx.x == 0) p.new_lengths[index] = n_kept;
    if (p.kept != nullptr) {
      int32_t* out = p.kept + index * p.capacity;
      for (int64_t i = threadIdx.x; i < p.capacity; i += kThreads) {
        out[i] = i < n_kept ? kept[i] : -1;
      }
    }
  }
  if (p.op != KVP_OP_SELECT) {
    write_positions(p, row, kept, n_kept);
    __syncthreads();
    if (changes) compact_row(p, row, kept, n_kept, fresh);
  }
  count_done(p, changes);
}

__device__ inline void finish_absent_row(const Params& p, const Row& row) {
  const int64_t index = row_index(p, row);
  if (p.op != KVP_OP_COMPACT) {
    if (threadIdx.x == 0) p.new_lengths[index] = 0;
    if (p.kept != nullptr) {
      for (int64_t i = threadIdx.x; i < p.capacity; i += kThreads) {
        p.kept[index * p.capacity + i] = -1;
      }
    }
  }
  if (p.op != KVP_OP_SELECT) write_positions(p, row, nullptr, 0);
  count_done(p, false);
}

// ---- one row, or all heads of a layer that select together -------------------------------------

// The scores that a row is ranked by: computed ones, or the caller's.
__device__ inline Scores ranking_of(const Params& p, const Row& row) {
  if (p.scores_entries) return {p.scores + first_slot(p, row), 1};
  return caller_scores(p, row);
}

__device__ inline Validity find_valid(const Params& p, const Row& row, Block& block) {
  return find_valid(block, positions_of(p, row), p.layers[row.layer].slots, length_at(p, row));
}

// UNION: the keys of all heads become the first head's, each the best of its slot.
__device__ inline void merge_heads(const Params& p, int64_t row_slots, int32_t end,
                                   uint32_t* keys) {
  for (int32_t slot = threadIdx.x; slot < end; slot += kThreads) {
    uint32_t best = keys[slot];
    for (int32_t head = 1; head < p.n_heads; ++head) {
      const uint32_t key = keys[head * row_slots + slot];
      best = best < key ? key : best;
    }
    keys[slot] = best;
  }
  __syncthreads();
}

// PER_HEAD, UNION and compaction alone, by the last block of a row. In UNION an entry ranks by its
// best rank in any head, so the last block of each head ranks its entries, and the last of those
// finishes all heads; what is valid is what the first head says.
__device__ inline void finish_rows(const Params& p, const Row& row, Block& block, uint32_t* bins) {
  const bool is_union = p.op != KVP_OP_COMPACT && p.mode == KVP_UNION;
  const Row first{row.layer, row.batch, is_union ? 0 : row.head};
  const Layer& layer = p.layers[row.layer];
  const Positions pos = positions_of(p, first);
  const Validity valid = find_valid(p, first, block);
  uint32_t* keys = p.keys + first_slot(p, first);
  const int32_t* list = reinterpret_cast<int32_t*>(keys);
  int32_t n_kept;
  bool cuts = false;
  if (p.op == KVP_OP_COMPACT) {
    const int64_t index = row_index(p, row);
    const int32_t listed = p.new_lengths[index];
    const auto most = static_cast<int32_t>(layer.slots < p.capacity ? layer.slots : p.capacity);
    n_kept = listed < 0 ? 0 : listed < most ? listed : most;
    list = p.kept + index * p.capacity;
  } else {
    const int32_t budget = budget_at(p, first);
    n_kept = budget < valid.count ? budget : valid.count;
    cuts = n_kept < valid.count;
    if (cuts) {
      const int64_t at = first_slot(p, row);
      write_keys(block, pos, ranking_of(p, row), valid, fit_pins(p, n_kept), p.keys + at);
      if (is_union) {
        rank_keys(block, p.keys + at, valid.end, valid.count, p.order_slots + at, p.scratch + at,
                  bins);
      }
    }
    if (is_union) {
      const int64_t unit = static_cast<int64_t>(row.layer) * p.n_batch + row.batch;
      if (!is_last(block, p.unit_tickets + unit, static_cast<uint32_t>(p.n_heads))) return;
      if (cuts) merge_heads(p, layer.row_slots, valid.end, keys);
    }
    auto* writable = reinterpret_cast<int32_t*>(keys);
    if (cuts) {
      const Cut cut = find_cut(block, keys, valid.end, n_kept, bins);
      list_kept(block, keys, valid.end, cut, writable);
    } else {
      list_valid(block, pos, valid, writable);
    }
  }
#pragma unroll 1
  for (int32_t i = 0; i < (is_union ? p.n_heads : 1); ++i) {
    // Opaque: what depends on it stays in this loop.
    const Row each{opaque(row.layer), row.batch, first.head + i};
    finish_row(p, each, block, valid, list, n_kept,
               cuts && p.scores_entries ? p.scores + first_slot(p, each) : nullptr);
  }
}

// ---- a budget for all rows of a sequence -------------------------------------------------------

// MODEL: by the last block of a row, then by the last of those of a sequence: the cut over the keys
// of all rows. Compaction follows in a launch of its own, since it wants a block per row and none
// may begin before the cut is known.
__device__ inline void select_model(const Params& p, const Row& row, Block& block, uint32_t* bins) {
  if (p.layers[row.layer].present) {
    const Validity valid = find_valid(p, row, block);
    if (threadIdx.x == 0) p.states[row_index(p, row)] = {valid.count, valid.end, 0};
  } else if (threadIdx.x == 0) {
    p.states[row_index(p, row)] = {0, 0, 0};
  }
  const auto n_rows = static_cast<int32_t>(p.n_layers * p.n_heads);
  if (!is_last(block, p.unit_tickets + row.batch, static_cast<uint32_t>(n_rows))) return;

  const auto row_of = [&](int32_t i) { return Row{i / p.n_heads, row.batch, i % p.n_heads}; };
  int64_t n_valid = 0;
  int32_t n_holding = 0;
  for (int32_t i = 0; i < n_rows; ++i) {
    const RowState& state = p.states[row_index(p, row_of(i))];
    n_valid += state.count;
    n_holding += state.count > 0;
  }
  int64_t budget = count_at(p.budget, {0, row.batch, 0});
  if (budget < n_holding) budget = n_holding;  // a row that holds an entry keeps one
  if (budget >= n_valid) {
    if (threadIdx.x == 0) p.cuts[row.batch] = {0, 1};
    return;
  }

  const auto pinned_budget = static_cast<int32_t>(budget / n_holding);
  CutSearch search(bins, static_cast<int32_t>(budget));
#pragma unroll 1
  for (int digit = 0; digit < CutSearch::kDigits; ++digit) {
    search.clear();
#pragma unroll 1
    for (int32_t i = 0; i < n_rows; ++i) {
      const Row each = row_of(i);
      const RowState& state = p.states[row_index(p, each)];
      if (state.count == 0) continue;
      uint32_t* keys = p.keys + first_slot(p, each);
      if (digit == 0) {
        // Without a window that is always kept, each row's best entry is.
        const bool pins_best = p.sinks == 0 && p.recent == 0;
        write_keys(block, positions_of(p, each), ranking_of(p, each), {state.count, state.end},
                   fit_pins(p, pinned_budget), keys);
        if (pins_best) pin_best(block, keys, state.end);
      }
      search.count(keys, state.end);
    }
    search.narrow(block);
  }
  const Cut cut = search.cut();
  // Entries at the threshold stay by (layer, head, slot), so rows use the quota up in order.
  int32_t left = cut.ties;
  for (int32_t i = 0; i < n_rows; ++i) {
    RowState& state = p.states[row_index(p, row_of(i))];
    if (state.count == 0) continue;
    const int32_t ties =
        count_ties(block, p.keys + first_slot(p, row_of(i)), state.end, cut.threshold);
    const int32_t taken = ties < left ? ties : left;
    left -= taken;
    if (threadIdx.x == 0) state.ties = taken;
  }
  if (threadIdx.x == 0) p.cuts[row.batch] = {cut.threshold, 0};
}

// MODEL, second launch: by one block per row.
__device__ inline void finish_model_row(const Params& p, const Row& row, Block& block) {
  if (!p.layers[row.layer].present) return finish_absent_row(p, row);
  const RowState state = p.states[row_index(p, row)];
  const SequenceCut cut = p.cuts[row.batch];
  const Validity valid{state.count, state.end};
  const bool keeps_all = cut.keeps_all != 0;
  uint32_t* keys = p.keys + first_slot(p, row);
  auto* list = reinterpret_cast<int32_t*>(keys);
  const int32_t n_kept = keeps_all
                             ? list_valid(block, positions_of(p, row), valid, list)
                             : list_kept(block, keys, valid.end, {cut.threshold, state.ties}, list);
  finish_row(p, row, block, valid, list, n_kept,
             !keeps_all && p.scores_entries ? p.scores + first_slot(p, row) : nullptr);
}

// ------------------------------------------------------------------------------------------------

// By the last block of a row.
__device__ inline void finish(const Params& p, const Row& row, Block& block, uint32_t* bins) {
  if (p.op != KVP_OP_COMPACT && p.mode == KVP_MODEL) return select_model(p, row, block, bins);
  if (!p.layers[row.layer].present) return finish_absent_row(p, row);
  finish_rows(p, row, block, bins);
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_FINISH_CUH
