// What a kernel is told: the caller's arguments with addresses, sizes and work items resolved.
#ifndef KVP_CUDA_PARAMS_H
#define KVP_CUDA_PARAMS_H

#include <cstddef>
#include <cstdint>

#include "host/fragment_layout.h"
#include "kvp/kvp.h"

namespace kvp::cuda {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileEntries = 128;  // that a block scores at a time
constexpr int kMaxLayers = 128;    // so that they fit the parameters of a launch
constexpr int kBins = 1 << 11;     // of a digit of keys
constexpr int kBinBytes = kBins * 4;
constexpr int kChunkBytes = 56;

// Most slots that a block scores. A narrow policy's are more, since for it a block copies all
// weights first.
template <int kHidden>
constexpr int kMaxChunkSlots = kHidden == kNarrow ? 1024 : 512;

// Stages of a wide policy's weights in shared memory: as many as leave room for the activations.
// Devices of compute capability 8.6, 8.9 and 12.x have 99 KB for a block, the others 163 KB or
// more. Of the architecture that a kernel was compiled for.
constexpr int ring_stages(int architecture) {
  return architecture == 86 || architecture == 89 || architecture >= 120 ? 2 : 6;
}
static_assert(kStageBytes >= kBinBytes, "weights and bins take turns in the same memory");

// [batch, head, slot]; strides in elements.
struct View {
  std::byte* data;
  int64_t stride_batch;
  int64_t stride_head;
  int64_t stride_slot;
};

struct Layer {
  int64_t slots;
  int64_t first_item;  // of the work items before this layer
  int64_t first_slot;  // of this layer's rows in `scores` and `keys`
  int64_t row_slots;   // distance between rows there
  View k;
  View v;
  View pos;
  View scores;
  int32_t chunks;  // work items of a row
  bool present;
  bool shares_positions;
  bool aligned_k;  // every entry begins at a multiple of 16 bytes
  bool aligned_v;
};

// The policy's fragments; see host/fragment_layout.h.
struct Weights {
  FragmentLayout layout;
  const std::byte* blocks;     // [layers][kv_heads][layout.block_bytes]
  const std::byte* positions;  // [position_rows][layout.position_row_bytes], per head or shared
  int64_t positions_per_head;  // bytes between two heads' tables; 0 if they share one
  int32_t position_rows;
  float per_output;  // 1 / the true width of the hidden layers
  float norm_eps;
  bool gains;
  bool norms;
};

// What a row's last block leaves for later blocks (UNION, MODEL).
struct RowState {
  int32_t count;  // valid entries
  int32_t end;    // they are in slots [0, end)
  int32_t ties;   // MODEL: of the keys equal to the threshold, how many this row keeps
};

// The cut of a sequence (MODEL).
struct SequenceCut {
  uint32_t threshold;
  int32_t keeps_all;
};

struct Params {
  kvp_op op;
  int32_t mode;
  int32_t order;
  int32_t n_layers;
  int32_t n_batch;
  int32_t n_heads;
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t element_bytes;
  bool pos_is_int64;
  bool scores_entries;  // with a policy
  int32_t sinks;
  int32_t recent;
  int32_t chunk_slots;
  int32_t work_bytes;  // of shared memory: weights while a block scores, then bins
  int64_t capacity;
  kvp_counts lengths;
  kvp_counts budget;
  Weights weights;

  int32_t* new_lengths;
  std::byte* new_pos;
  int32_t* kept;
  int32_t* changed;

  // Workspace.
  uint32_t* row_tickets;   // [L, B, H], zero at launch, as all tickets
  uint32_t* unit_tickets;  // UNION [L, B], MODEL [B]
  uint32_t* done_ticket;
  uint32_t* any_changed;
  RowState* states;      // [L, B, H] (UNION, MODEL)
  SequenceCut* cuts;     // [B] (MODEL)
  float* scores;         // per layer [B, H, row_slots]; only with a policy
  uint32_t* keys;        // likewise: keys, then the kept slots in ascending order
  int32_t* order_slots;  // likewise: survivors in KVP_ANY order, or sorted slots (UNION)
  int32_t* scratch;      // likewise (UNION)

  Layer layers[kMaxLayers];
};

static_assert(sizeof(Params) <= 32764, "the parameters of a launch");

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PARAMS_H
