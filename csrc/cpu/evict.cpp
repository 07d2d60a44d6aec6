// Orchestration: who scores, selects and compacts which rows when.
//
// PER_HEAD and UNION work on units (a row; all heads of a layer and sequence) whose tiles of
// entries are scored in parallel; the thread that finishes the last tile selects and compacts the
// unit while its keys are warm in cache. MODEL needs every score of a sequence before it can
// select, so it runs in phases, one sequence at a time.
//
// A unit that keeps all its entries needs no scores and is not scored; if no padding lies before
// its entries either, nothing is touched.
#include "cpu/evict.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>

#include "cpu/compact.h"
#include "cpu/dispatch.h"
#include "cpu/score.h"
#include "cpu/select.h"
#include "cpu/tiles.h"
#include "cpu/workspace.h"
#include "host/parallel.h"
#include "host/rows.h"

namespace kvp::cpu {
namespace {

// Slots that one thread scores in a go: enough to fetch the next tile while one is computed.
constexpr int64_t kItemSlots = 4 * kTileEntries;

// Scores of one row, by slot.
struct Scores {
  float* data;
  int64_t stride;
};

class Operation {
 public:
  Operation(kvp_op op, const kvp_args& args)
      : op_(op), args_(args), workspace_(op, args, static_cast<std::byte*>(args.workspace)) {}

  void run() {
    if (rows() == 0) {
      // no layer, sequence or head
    } else if (op_ == KVP_OP_COMPACT) {
      compact();
    } else if (op_ != KVP_OP_SCORE && args_.mode == KVP_MODEL) {
      for (int64_t b = 0; b < args_.n_batch; ++b) run_model(b);
    } else {
      run_units();
    }
    if (args_.changed != nullptr && op_ != KVP_OP_SCORE) *args_.changed = changed_;
  }

 private:
  // ---- rows -------------------------------------------------------------------------------

  Row row_at(int64_t index) const {
    const int64_t h = index % args_.n_heads;
    const int64_t b = index / args_.n_heads % args_.n_batch;
    return {index / args_.n_heads / args_.n_batch, b, h};
  }

  bool is_present(const Row& row) const { return kvp::is_present(op_, layer_at(args_, row.layer)); }

  bool has_scores(const Row& row) const {
    return layer_at(args_, row.layer).scores.data != nullptr;
  }

  // The caller's scores, or those in the workspace where the keys will be.
  Scores scores_of(const Row& row, uint32_t* keys) const {
    const kvp_view& view = layer_at(args_, row.layer).scores;
    if (view.data == nullptr) return {reinterpret_cast<float*>(keys), 1};
    return {reinterpret_cast<float*>(row_data(view, sizeof(float), row)), view.stride_slot};
  }

  // ---- scoring ----------------------------------------------------------------------------

  int64_t tiles_of(int64_t slots) const { return (slots + kItemSlots - 1) / kItemSlots; }

  // Scores the entries of one tile of slots. In a caller's buffer only those without a score.
  void score_tile(const Row& row, const Validity& valid, int64_t tile_index, uint32_t* keys,
                  int worker) const {
    const kvp_layer& layer = layer_at(args_, row.layer);
    const kvp_policy& policy = *args_.policy;
    const Scores scores = scores_of(row, keys);
    const Positions pos = positions_of(args_, row);
    const bool fills = op_ == KVP_OP_SCORE || !has_scores(row);

    const int64_t begin = tile_index * kItemSlots;
    const int64_t end = std::min(begin + kItemSlots, op_ == KVP_OP_SCORE ? layer.slots : valid.end);
    int32_t slots[kItemSlots];
    int32_t count = 0;
    for (int64_t slot = begin; slot < end; ++slot) {
      float& score = scores.data[slot * scores.stride];
      if (slot < valid.end && pos[slot] >= 0 && (fills || std::isnan(score))) {
        slots[count++] = static_cast<int32_t>(slot);
      } else if (fills) {
        score = std::numeric_limits<float>::quiet_NaN();
      }
    }
    if (count == 0) return;

    const kvp_policy_shape& shape = policy.shape;
    const int64_t head = row.layer * shape.kv_heads + row.head;
    const int64_t table = shape.flags & KVP_POLICY_SHARED_POSITIONS
                              ? 0
                              : head * shape.position_rows * shape.position_dim;
    const int64_t bytes = element_bytes(args_.dtype);
    const bool consecutive = slots[count - 1] - slots[0] == count - 1;
    const ScoreTile tile{
        .shape = &shape,
        .weights = static_cast<const float*>(policy.weights) + head * block_floats_,
        .positions = static_cast<const float*>(policy.positions) + table,
        .k = row_data(layer.k, bytes, row),
        .k_stride = layer.k.stride_slot,
        .v = row_data(layer.v, bytes, row),
        .v_stride = layer.v.stride_slot,
        .dtype = static_cast<kvp_dtype>(args_.dtype),
        .pos = pos.data,
        .pos_stride = pos.stride,
        .pos_dtype = static_cast<kvp_dtype>(args_.pos_dtype),
        .slots = consecutive ? nullptr : slots,
        .first_slot = slots[0],
        .count = count,
        .scores = scores.data,
        .scores_stride = scores.stride,
    };
    isa_.score_tile(tile, workspace_.score_scratch + worker * workspace_.score_scratch_bytes);
  }

  // ---- results ----------------------------------------------------------------------------

  // Reports a row's survivors, ascending in `ascending`, and moves them where that is asked for.
  void finish_row(const Row& row, const Validity& valid, const int32_t* ascending, int64_t n_kept,
                  int worker) {
    const int32_t* kept = ascending;
    const bool changes = n_kept < valid.count || !valid.is_prefix();
    if (changes && args_.order == KVP_ANY) {
      int32_t* holes = workspace_.holes + worker * workspace_.row_slots;
      fill_holes(ascending, n_kept, holes);
      kept = holes;
    }
    const int64_t index = row_index(args_, row);
    args_.new_lengths[index] = static_cast<int32_t>(n_kept);
    if (args_.kept != nullptr) {
      int32_t* out = args_.kept + index * args_.capacity;
      std::fill(std::copy_n(kept, n_kept, out), out + args_.capacity, -1);
    }
    if (op_ == KVP_OP_EVICT) {
      write_positions(row, kept, n_kept);
      if (changes) compact_row(args_, row, kept, n_kept);
    }
    if (changes) changed_.store(1, std::memory_order_relaxed);
  }

  void finish_absent_row(const Row& row) {
    const int64_t index = row_index(args_, row);
    args_.new_lengths[index] = 0;
    if (args_.kept != nullptr) std::fill_n(args_.kept + index * args_.capacity, args_.capacity, -1);
    if (op_ == KVP_OP_EVICT) write_positions(row, nullptr, 0);
  }

  template <typename T>
  void write_positions(const Positions& pos, int64_t index, const int32_t* kept, int64_t n_kept) {
    T* out = static_cast<T*>(args_.new_pos) + index * args_.capacity;
    const T* from = static_cast<const T*>(pos.data);
    for (int64_t i = 0; i < n_kept; ++i) out[i] = from[kept[i] * pos.stride];
    std::fill(out + n_kept, out + args_.capacity, T{-1});
  }

  void write_positions(const Row& row, const int32_t* kept, int64_t n_kept) {
    if (args_.new_pos == nullptr) return;
    const Positions pos = positions_of(args_, row);
    const int64_t index = row_index(args_, row);
    if (args_.pos_dtype == KVP_INT64) {
      write_positions<int64_t>(pos, index, kept, n_kept);
    } else {
      write_positions<int32_t>(pos, index, kept, n_kept);
    }
  }

  static bool is_identity(const int32_t* kept, int64_t n_kept) {
    for (int64_t i = 0; i < n_kept; ++i) {
      if (kept[i] != i) return false;
    }
    return true;
  }

  void compact() {
    parallel_for(workspace_.threads, rows(), [&](int, int64_t index) {
      const Row row = row_at(index);
      const int64_t n_kept = args_.new_lengths[index];
      const int32_t* kept = args_.kept + index * args_.capacity;
      if (!is_present(row)) {
        write_positions(row, nullptr, 0);
        return;
      }
      write_positions(row, kept, n_kept);
      const bool moves = !is_identity(kept, n_kept);
      if (!moves && n_kept == find_valid(args_, row).count) return;
      compact_row(args_, row, kept, n_kept);
      changed_.store(1, std::memory_order_relaxed);
    });
  }

  // ---- PER_HEAD, UNION, and scoring alone ----------------------------------------------------

  int64_t rows() const { return int64_t{args_.n_layers} * args_.n_batch * args_.n_heads; }

  uint32_t* unit_keys(int slot, int64_t head = 0) const {
    return workspace_.keys + (slot * workspace_.heads + head) * workspace_.row_slots;
  }

  void run_units() {
    const int64_t heads = workspace_.heads;
    run_tiled(
        workspace_.threads, rows() / heads, workspace_.units,
        [&](int64_t unit, int slot) { return open_unit(row_at(unit * heads), slot); },
        [&](int64_t unit, int slot, int64_t tile, int worker) {
          Row row = row_at(unit * heads);
          const int64_t head = tile % heads;
          row.head += head;
          uint32_t* keys = op_ == KVP_OP_SCORE ? nullptr : unit_keys(slot, head);
          score_tile(row, workspace_.states[slot].valid, tile / heads, keys, worker);
        },
        [&](int64_t unit, int slot, int worker) {
          close_unit(row_at(unit * heads), slot, worker);
        });
  }

  int64_t open_unit(const Row& row, int slot) {
    if (!is_present(row)) return 0;
    RowState& state = workspace_.states[slot];
    state.valid = find_valid(args_, row);
    if (op_ == KVP_OP_SCORE) return tiles_of(layer_at(args_, row.layer).slots);
    state.n_kept = std::min(std::max<int64_t>(count_at(args_.budget, row), 1), state.valid.count);
    const bool needs_scores =
        state.n_kept < state.valid.count && op_ == KVP_OP_EVICT && args_.policy != nullptr;
    return needs_scores ? workspace_.heads * tiles_of(state.valid.end) : 0;
  }

  void close_unit(Row row, int slot, int worker) {
    if (op_ == KVP_OP_SCORE) return;
    const bool present = is_present(row);
    const RowState& state = workspace_.states[slot];
    auto* kept = reinterpret_cast<int32_t*>(unit_keys(slot));
    if (present) list_unit(row, state, slot, worker, kept);
    for (int64_t head = 0; head < workspace_.heads; ++head, ++row.head) {
      if (present) {
        finish_row(row, state.valid, kept, state.n_kept, worker);
      } else {
        finish_absent_row(row);
      }
    }
  }

  void list_unit(const Row& row, const RowState& state, int slot, int worker, int32_t* kept) {
    const Validity& valid = state.valid;
    if (state.n_kept == valid.count) return list_valid(positions_of(args_, row), valid, kept);
    uint32_t* bins = workspace_.bins + worker * int64_t{CutSearch::kBins};
    const uint32_t* keys = workspace_.heads > 1 ? merge_heads(row, state, slot, bins)
                                                : write_pinned_keys(row, state, unit_keys(slot));
    list_kept(keys, valid.end, find_cut(keys, valid.end, state.n_kept, bins), kept);
  }

  // Keys of a row whose pins shrink to what it keeps. Validity is that of the unit's first head.
  const uint32_t* write_pinned_keys(Row row, const RowState& state, uint32_t* keys) const {
    const Scores scores = scores_of(row, keys);
    row.head -= row.head % workspace_.heads;
    write_keys(scores.data, scores.stride, positions_of(args_, row), state.valid, keys);
    pin(fit_pins(args_.sinks, args_.recent, state.n_kept), state.valid, keys);
    return keys;
  }

  // UNION: keys that descend with an entry's best rank in any head.
  const uint32_t* merge_heads(Row row, const RowState& state, int slot, uint32_t* bins) const {
    const int64_t end = state.valid.end;
    uint32_t* merged = workspace_.ranks + slot * 3 * workspace_.row_slots;
    uint32_t* order = merged + workspace_.row_slots;
    std::fill_n(merged, end, kPaddingKey);
    for (int64_t head = 0; head < workspace_.heads; ++head, ++row.head) {
      const uint32_t* keys = write_pinned_keys(row, state, unit_keys(slot, head));
      sort_by_key(keys, end, order, order + workspace_.row_slots, bins);
      for (int64_t rank = 0; rank < state.valid.count; ++rank) {
        uint32_t& key = merged[order[rank]];
        key = std::max(key, ~static_cast<uint32_t>(rank));
      }
    }
    return merged;
  }

  // ---- MODEL ------------------------------------------------------------------------------

  void run_model(int64_t batch) {
    const int64_t heads = args_.n_heads;
    const int64_t n_rows = args_.n_layers * heads;
    const int threads = workspace_.threads;
    RowState* states = workspace_.states;
    const auto row_of = [&](int64_t i) { return Row{i / heads, batch, i % heads}; };
    const auto keys_of = [&](int64_t i) { return workspace_.keys + states[i].first_key; };

    parallel_for(threads, n_rows, [&](int, int64_t i) {
      states[i].valid = is_present(row_of(i)) ? find_valid(args_, row_of(i)) : Validity{};
    });
    int64_t n_valid = 0;
    int64_t n_holding = 0;
    int64_t first_key = 0;
    for (int64_t i = 0; i < n_rows; ++i) {
      n_valid += states[i].valid.count;
      n_holding += states[i].valid.count > 0;
      states[i].first_key = first_key;
      if (is_present(row_of(i))) {
        first_key += round_up_to_panel(layer_at(args_, row_of(i).layer).slots);
      }
    }
    const int64_t budget = count_at(args_.budget, {0, batch, 0});
    const bool keeps_all = budget >= n_valid;

    Cut cut{};
    if (!keeps_all) {
      assert(n_holding > 0);
      const int64_t pinned_budget = budget / n_holding;
      run_tiled(
          threads, n_rows, workspace_.units,
          [&](int64_t i, int) {
            const bool scores = op_ == KVP_OP_EVICT && args_.policy != nullptr;
            return scores ? tiles_of(states[i].valid.end) : 0;
          },
          [&](int64_t i, int, int64_t tile, int worker) {
            score_tile(row_of(i), states[i].valid, tile, keys_of(i), worker);
          },
          [&](int64_t i, int, int) {
            if (states[i].valid.count > 0) {
              write_model_keys(row_of(i), states[i].valid, pinned_budget, keys_of(i));
            }
          });
      cut = find_model_cut(n_rows, budget, keys_of);
      share_ties(n_rows, cut, keys_of);
    }
    parallel_for(threads, n_rows, [&](int worker, int64_t i) {
      if (!is_present(row_of(i))) return finish_absent_row(row_of(i));
      const Validity& valid = states[i].valid;
      auto* kept = reinterpret_cast<int32_t*>(keys_of(i));
      int64_t n_kept = valid.count;
      if (keeps_all) {
        list_valid(positions_of(args_, row_of(i)), valid, kept);
      } else {
        n_kept = list_kept(keys_of(i), valid.end, {cut.threshold, states[i].ties}, kept);
      }
      finish_row(row_of(i), valid, kept, n_kept, worker);
    });
  }

  void write_model_keys(const Row& row, const Validity& valid, int64_t pinned_budget,
                        uint32_t* keys) const {
    const Scores scores = scores_of(row, keys);
    write_keys(scores.data, scores.stride, positions_of(args_, row), valid, keys);
    if (args_.sinks == 0 && args_.recent == 0) {
      pin_best(valid, keys);
    } else {
      pin(fit_pins(args_.sinks, args_.recent, pinned_budget), valid, keys);
    }
  }

  template <typename KeysOf>
  Cut find_model_cut(int64_t n_rows, int64_t budget, const KeysOf& keys_of) const {
    const int threads = workspace_.threads;
    CutSearch search(budget);
    while (!search.done()) {
      std::fill_n(workspace_.bins, int64_t{threads} * CutSearch::kBins, 0u);
      parallel_for(threads, n_rows, [&](int worker, int64_t i) {
        search.count(keys_of(i), workspace_.states[i].valid.end,
                     workspace_.bins + worker * int64_t{CutSearch::kBins});
      });
      search.narrow([&](int64_t bin) {
        int64_t total = 0;
        for (int worker = 0; worker < threads; ++worker) {
          total += workspace_.bins[worker * int64_t{CutSearch::kBins} + bin];
        }
        return total;
      });
    }
    return search.cut();
  }

  // Entries at the threshold stay by (layer, head, slot), so rows use the quota up in order.
  template <typename KeysOf>
  void share_ties(int64_t n_rows, const Cut& cut, const KeysOf& keys_of) {
    parallel_for(workspace_.threads, n_rows, [&](int, int64_t i) {
      RowState& state = workspace_.states[i];
      state.ties = count_ties(keys_of(i), state.valid.end, cut.threshold);
    });
    int64_t left = cut.ties;
    for (int64_t i = 0; i < n_rows; ++i) {
      RowState& state = workspace_.states[i];
      state.ties = std::min(state.ties, left);
      left -= state.ties;
    }
  }

  const kvp_op op_;
  const kvp_args& args_;
  const Workspace workspace_;
  const Isa& isa_ = active_isa();
  const int64_t block_floats_ =
      args_.policy == nullptr ? 0 : PackedLayout(args_.policy->shape).floats;
  std::atomic<int32_t> changed_{0};
};

}  // namespace

size_t workspace_bytes(kvp_op op, const kvp_args& args) {
  return Workspace(op, args, nullptr).bytes;
}

void run(kvp_op op, const kvp_args& args) { Operation(op, args).run(); }

}  // namespace kvp::cpu
