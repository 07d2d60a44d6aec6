#include "cpu/workspace.h"

#include <algorithm>

#include "cpu/score.h"
#include "host/arena.h"

namespace kvp::cpu {

Workspace::Workspace(kvp_op op, const kvp_args& args, std::byte* base) {
  const bool selects = op == KVP_OP_SELECT || op == KVP_OP_EVICT;
  const bool scores = op == KVP_OP_SCORE || (op == KVP_OP_EVICT && args.policy != nullptr);
  const bool whole_model = selects && args.mode == KVP_MODEL;
  const bool is_union = selects && args.mode == KVP_UNION;

  int64_t longest = 0;
  int64_t sequence_slots = 0;
  for (int64_t l = 0; l < args.n_layers; ++l) {
    const kvp_layer& layer = layer_at(args, l);
    if (!is_present(op, layer)) continue;
    longest = std::max(longest, layer.slots);
    sequence_slots += args.n_heads * round_up(layer.slots, kCacheLine / 4);
  }
  row_slots = round_up(longest, kCacheLine / 4);
  heads = is_union ? args.n_heads : 1;

  const int64_t rows = int64_t{args.n_layers} * args.n_batch * args.n_heads;
  const int64_t n_units =
      whole_model ? int64_t{args.n_layers} * args.n_heads : rows / std::max<int64_t>(heads, 1);
  const int64_t tiles_of_unit = scores ? heads * (longest / kTileEntries + 1) : 1;
  threads = static_cast<int>(
      std::clamp<int64_t>(args.threads, 1, std::max<int64_t>(n_units * tiles_of_unit, 1)));

  Arena arena(base);
  if (op != KVP_OP_COMPACT) {
    const int64_t in_flight = std::min<int64_t>(threads, n_units);
    units = {arena.take<UnitInFlight>(in_flight), static_cast<size_t>(in_flight)};
    states = arena.take<RowState>(whole_model ? n_units : in_flight);
    if (scores) {
      score_scratch_bytes =
          round_up(static_cast<int64_t>(cpu::score_scratch_bytes(args.policy->shape)), kCacheLine);
      score_scratch = arena.take<std::byte>(threads * score_scratch_bytes);
    }
    if (selects) {
      bins = arena.take<uint32_t>(int64_t{threads} * CutSearch::kBins);
      keys = arena.take<uint32_t>(whole_model ? sequence_slots : in_flight * heads * row_slots);
      if (is_union) ranks = arena.take<uint32_t>(in_flight * 3 * row_slots);
      if (args.order == KVP_ANY) holes = arena.take<int32_t>(threads * row_slots);
    }
  }
  bytes = arena.bytes();
}

}  // namespace kvp::cpu
