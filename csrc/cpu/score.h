// Scoring of cache entries on the CPU: the interface between the orchestration of an operation
// and the kernels of each instruction set.
//
// score.cpp is compiled once per instruction set, with KVP_ISA naming the namespace of the result.
// The linker keeps one copy of an inline function however many instruction sets it was compiled
// for, so these files must not emit any: what they share lives in isa.cpp, what they own is
// in unnamed namespaces.
#ifndef KVP_CPU_SCORE_H
#define KVP_CPU_SCORE_H

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/packed_layout.h"
#include "kvp/kvp.h"

namespace kvp::cpu {

// Entries of one row, scored in one go.
struct ScoreTile {
  const kvp_policy_shape* shape;
  const float* weights;    // packed block of this (layer, head), 64-byte aligned
  const float* positions;  // [position_rows][position_dim] of this head; unused if position_dim 0
  const void* k;           // slot 0 of the row; no alignment is assumed
  int64_t k_stride;        // between slots, in elements
  const void* v;
  int64_t v_stride;
  kvp_dtype dtype;
  const void* pos;  // any value: positions are clamped to [0, position_rows - 1]
  int64_t pos_stride;
  kvp_dtype pos_dtype;
  const int32_t* slots;  // which slots to score; nullptr: first_slot .. first_slot + count - 1
  int64_t first_slot;
  int32_t count;  // any; kTileEntries at a time are in flight
  float* scores;  // scores[slot * scores_stride] is written
  int64_t scores_stride;
};

// Entries per pass over the weights: the activations of that many fit in L2 and fill whole
// register blocks of every instruction set (multiples of 6 and of 14 rows).
constexpr int kTileEntries = 84;

// What one thread needs to score with a policy.
struct ScorePlan {
  explicit ScorePlan(const kvp_policy_shape& shape);

  PackedLayout weights;
  int64_t inputs;         // channels of [k; v; p]
  int64_t hidden_padded;  // whole panels
  int64_t input_stride;   // floats between two entries' inputs
  int64_t hidden_stride;  // floats between two entries' activations
  size_t scratch_bytes;
};

// Scratch that score_tile needs, per thread.
size_t score_scratch_bytes(const kvp_policy_shape& shape);

// The kernels of one instruction set.
struct Isa {
  const char* name;
  void (*score_tile)(const ScoreTile& tile, void* scratch);
};

// Built into this library and runnable on this machine, best first: "v4", "v3", "baseline".
std::span<const Isa> available_isas();

}  // namespace kvp::cpu

#endif  // KVP_CPU_SCORE_H
