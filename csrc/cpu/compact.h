// Moving of surviving entries to the front of their row, in place.
//
// Floor: each moved entry is read once and written once. Safe because survivors that ascend are
// never below their new slot (so a copy in ascending order overwrites only what has been copied),
// and survivors that fill holes come from above the new length (so reads and writes are disjoint).
#ifndef KVP_CPU_COMPACT_H
#define KVP_CPU_COMPACT_H

#include <cstdint>

#include "host/rows.h"

namespace kvp::cpu {

// Moves slot kept[i] to slot i for i in [0, n_kept) in K, V, scores and per-head positions. The
// rest of the scores becomes NaN.
void compact_row(const kvp_args& args, const Row& row, const int32_t* kept, int64_t n_kept);

}  // namespace kvp::cpu

#endif  // KVP_CPU_COMPACT_H
