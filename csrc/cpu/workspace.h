// What an operation keeps in the caller's workspace: one definition for its size and its use.
#ifndef KVP_CPU_WORKSPACE_H
#define KVP_CPU_WORKSPACE_H

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/select.h"
#include "cpu/tiles.h"
#include "kvp/kvp.h"

namespace kvp::cpu {

// A row whose keys are ready or whose selection is known.
struct RowState {
  Validity valid;
  int64_t n_kept;
  int64_t first_key;  // MODEL: where its keys begin in the sequence's
  int64_t ties;       // MODEL: of the keys equal to the threshold, how many this row keeps
};

struct Workspace {
  // With base == nullptr only `bytes` is meaningful.
  Workspace(kvp_op op, const kvp_args& args, std::byte* base);

  int threads = 1;        // that find work
  int64_t heads = 1;      // rows that select together: all heads in UNION
  int64_t row_slots = 0;  // distance between rows of `keys`
  int64_t score_scratch_bytes = 0;

  // One per thread.
  std::byte* score_scratch = nullptr;
  uint32_t* bins = nullptr;  // [CutSearch::kBins]
  int32_t* holes = nullptr;  // [row_slots] survivors in KVP_ANY order

  // One per unit in flight.
  std::span<UnitInFlight> units;
  RowState* states = nullptr;  // MODEL: one per row of the sequence instead
  uint32_t* keys = nullptr;    // [heads][row_slots]; MODEL: of every row of the sequence. Holds
                               // scores, then keys, then the kept slots.
  uint32_t* ranks = nullptr;   // UNION: [3][row_slots] priorities and sorting space

  size_t bytes = 0;
};

}  // namespace kvp::cpu

#endif  // KVP_CPU_WORKSPACE_H
