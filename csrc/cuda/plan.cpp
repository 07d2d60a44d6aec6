#include "cuda/plan.h"

#include <algorithm>

#include "host/arena.h"
#include "host/error.h"
#include "host/rows.h"

namespace kvp::cuda {
namespace {

using ll = long long;

bool selects(kvp_op op) { return op == KVP_OP_SELECT || op == KVP_OP_EVICT; }
bool scores_entries(kvp_op op, const kvp_args& args) {
  return op == KVP_OP_SCORE || (op == KVP_OP_EVICT && args.policy != nullptr);
}

int64_t n_rows(const kvp_args& args) {
  return int64_t{args.n_layers} * args.n_batch * args.n_heads;
}

void check_supported(kvp_op op, const kvp_args& args) {
  if (args.n_layers > kMaxLayers) {
    unsupported("n_layers is %d, the CUDA kernels support up to %d", args.n_layers, kMaxLayers);
  }
  int64_t slots = 0;
  for (int64_t l = 0; l < args.n_layers; ++l) {
    if (kvp::is_present(op, layer_at(args, l))) slots += layer_at(args, l).slots;
  }
  // Blocks of a launch, and counts over a whole sequence, are 31-bit numbers.
  const int64_t per_sequence = slots * args.n_heads;
  if (n_rows(args) > INT32_MAX || per_sequence > INT32_MAX ||
      per_sequence * args.n_batch / kTileEntries > INT32_MAX - n_rows(args)) {
    unsupported(
        "a cache of %d layers, %d sequences, %d heads and %lld slots in all layers is "
        "beyond the CUDA kernels",
        args.n_layers, args.n_batch, args.n_heads, ll{slots});
  }
}

// ---- the cache ---------------------------------------------------------------------------------

View view_of(const kvp_view& view) {
  return {static_cast<std::byte*>(view.data), view.stride_batch, view.stride_head,
          view.stride_slot};
}

bool is_aligned(const kvp_view& view, int64_t element_bytes) {
  const auto bytes = reinterpret_cast<uintptr_t>(view.data) |
                     static_cast<uintptr_t>(view.stride_batch * element_bytes) |
                     static_cast<uintptr_t>(view.stride_head * element_bytes) |
                     static_cast<uintptr_t>(view.stride_slot * element_bytes);
  return bytes % 16 == 0;
}

void plan_layers(kvp_op op, const kvp_args& args, Plan& plan) {
  Params& p = plan.params;
  int64_t items = 0;
  int64_t slots = 0;
  for (int64_t l = 0; l < args.n_layers; ++l) {
    const kvp_layer& from = layer_at(args, l);
    Layer& to = p.layers[l];
    to.present = kvp::is_present(op, from);
    to.slots = to.present ? from.slots : 0;
    to.first_item = items;
    to.first_slot = slots;
    to.row_slots = round_up(to.slots, kCacheLine / 4);
    to.chunks = static_cast<int32_t>(
        p.scores_entries ? std::max<int64_t>(1, (to.slots + p.chunk_slots - 1) / p.chunk_slots)
                         : 1);
    to.k = view_of(from.k);
    to.v = view_of(from.v);
    to.pos = view_of(from.pos);
    to.scores = view_of(from.scores);
    to.shares_positions = shares_positions(from);
    to.aligned_k = is_aligned(from.k, p.element_bytes);
    to.aligned_v = is_aligned(from.v, p.element_bytes);
    const int64_t rows = int64_t{args.n_batch} * args.n_heads;
    items += rows * to.chunks;
    slots += rows * to.row_slots;
  }
  plan.items = items;
  plan.rows = n_rows(args);
}

// ---- the policy --------------------------------------------------------------------------------

int64_t piece(int64_t bytes) { return round_up(bytes, 16); }

int32_t max_chunk_slots(const FragmentLayout& layout) {
  return layout.hidden == kNarrow ? kMaxChunkSlots<kNarrow> : kMaxChunkSlots<kWide>;
}

// As the kernels take it: Block, work, and a scoring block's ScoreMemory.
int64_t shared_bytes(const Params& p) {
  const int64_t common = piece(kWarps * 4) + piece(4) + piece(p.work_bytes);
  if (!p.scores_entries) return common;
  const FragmentLayout& layout = p.weights.layout;
  const int64_t activations = int64_t{kTileEntries} * kWide * 2;
  const int64_t partials = int64_t{4} * kTileEntries * 4;  // and gains
  return common + piece(int64_t{layout.vector_floats} * 4) + max_chunk_slots(layout) * 4 +
         piece(kChunkBytes) + (layout.hidden == kWide ? activations + partials : 0);
}

// Long chunks copy a policy's weights less often, short ones keep all processors busy.
int32_t choose_chunk_slots(kvp_op op, const kvp_args& args, const Device& device, int32_t most) {
  int64_t slots = 0;
  for (int64_t l = 0; l < args.n_layers; ++l) {
    if (kvp::is_present(op, layer_at(args, l))) slots += layer_at(args, l).slots;
  }
  constexpr int kItemsPerProcessor = 8;
  const int64_t share =
      slots * args.n_batch * args.n_heads / (int64_t{device.multiprocessors} * kItemsPerProcessor);
  return static_cast<int32_t>(
      std::clamp<int64_t>(round_up(share, kTileEntries), kTileEntries, most));
}

void plan_policy(kvp_op op, const kvp_args& args, const Device& device, Plan& plan) {
  Params& p = plan.params;
  const kvp_policy& policy = *args.policy;
  const kvp_policy_shape& shape = policy.shape;
  Weights& w = p.weights;
  w.layout = fragment_layout(shape);
  w.blocks = static_cast<const std::byte*>(policy.weights);
  w.positions = static_cast<const std::byte*>(policy.positions);
  w.positions_per_head = shape.flags & KVP_POLICY_SHARED_POSITIONS
                             ? 0
                             : w.layout.position_row_bytes * shape.position_rows;
  w.position_rows = shape.position_rows;
  w.per_output = 1.0f / static_cast<float>(shape.hidden);
  w.norm_eps = shape.norm_eps;
  w.gains = shape.flags & KVP_POLICY_GAINS;
  w.norms = shape.flags & KVP_POLICY_NORMS;

  const bool narrow = w.layout.hidden == kNarrow;
  p.work_bytes = (narrow ? w.layout.stages : ring_stages(device.architecture)) * kStageBytes;
  p.chunk_slots = choose_chunk_slots(op, args, device, max_chunk_slots(w.layout));
  if (shared_bytes(p) > device.shared_bytes) {
    unsupported(
        "the policy needs %lld bytes of shared memory for kernels of architecture %d, a block of "
        "this device has %lld: build kvp for the device's own architecture",
        ll{shared_bytes(p)}, device.architecture, ll{device.shared_bytes});
  }
}

// ---- the workspace -----------------------------------------------------------------------------

size_t plan_workspace(kvp_op op, const kvp_args& args, std::byte* base, Plan& plan) {
  Params& p = plan.params;
  const int64_t rows = n_rows(args);
  int64_t slots = 0;
  for (int64_t l = 0; l < args.n_layers; ++l) {
    const kvp_layer& layer = layer_at(args, l);
    if (!kvp::is_present(op, layer)) continue;
    slots += int64_t{args.n_batch} * args.n_heads * round_up(layer.slots, kCacheLine / 4);
  }
  Arena arena(base);
  if (op == KVP_OP_SCORE) return arena.bytes();

  const int64_t units = int64_t{args.n_layers} * args.n_batch;
  const bool whole_model = selects(op) && args.mode == KVP_MODEL;
  const bool is_union = selects(op) && args.mode == KVP_UNION;
  const int64_t n_tickets = rows + units + 2;
  auto* tickets = arena.take<uint32_t>(n_tickets);
  if (tickets != nullptr) {
    p.row_tickets = tickets;
    p.unit_tickets = tickets + rows;
    p.done_ticket = tickets + rows + units;
    p.any_changed = p.done_ticket + 1;
  }
  plan.tickets = reinterpret_cast<std::byte*>(tickets);
  plan.ticket_bytes = static_cast<size_t>(n_tickets) * sizeof(uint32_t);
  if (whole_model) {
    p.states = arena.take<RowState>(rows);
    p.cuts = arena.take<SequenceCut>(args.n_batch);
  }
  if (selects(op)) {
    if (scores_entries(op, args)) p.scores = arena.take<float>(slots);
    p.keys = arena.take<uint32_t>(slots);
    if (is_union || args.order == KVP_ANY) p.order_slots = arena.take<int32_t>(slots);
    if (is_union) p.scratch = arena.take<int32_t>(slots);
  }
  return arena.bytes();
}

}  // namespace

void make_plan(kvp_op op, const kvp_args& args, const Device& device, Plan& plan) {
  check_supported(op, args);
  Params& p = plan.params;
  p.op = op;
  p.mode = args.mode;
  p.order = args.order;
  p.n_layers = args.n_layers;
  p.n_batch = args.n_batch;
  p.n_heads = args.n_heads;
  p.head_dim_k = args.head_dim_k;
  p.head_dim_v = args.head_dim_v;
  p.element_bytes = static_cast<int32_t>(element_bytes(args.dtype));
  p.pos_is_int64 = args.pos_dtype == KVP_INT64;
  p.scores_entries = scores_entries(op, args);
  p.sinks = args.sinks;
  p.recent = args.recent;
  p.capacity = args.capacity;
  p.lengths = args.lengths;
  p.budget = args.budget;
  p.new_lengths = args.new_lengths;
  p.new_pos = static_cast<std::byte*>(args.new_pos);
  p.kept = args.kept;
  p.changed = args.changed;
  p.work_bytes = kBinBytes;
  if (p.scores_entries) plan_policy(op, args, device, plan);
  plan.shared_bytes = static_cast<size_t>(shared_bytes(p));
  plan_layers(op, args, plan);
  plan_workspace(op, args, static_cast<std::byte*>(args.workspace), plan);
}

size_t plan_workspace_bytes(kvp_op op, const kvp_args& args) {
  Plan plan{};
  return plan_workspace(op, args, nullptr, plan);
}

}  // namespace kvp::cuda
