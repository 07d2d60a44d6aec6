#include "host/validate.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "host/error.h"
#include "host/policy.h"
#include "host/rows.h"
#include "host/strided.h"

namespace kvp {
namespace {

using ll = long long;  // what %lld takes on every platform

constexpr int64_t kMaxSlots = INT32_MAX;  // slots are reported as int32

bool moves_entries(kvp_op op) { return op == KVP_OP_COMPACT || op == KVP_OP_EVICT; }
bool selects(kvp_op op) { return op == KVP_OP_SELECT || op == KVP_OP_EVICT; }
bool reads_kept(kvp_op op) { return op == KVP_OP_COMPACT; }

void check_at_least(const char* name, int64_t value, int64_t low) {
  if (value < low) {
    invalid("%s is %lld, expected >= %lld", name, ll{value}, ll{low});
  }
}

void check_enum(const char* name, int32_t value, int32_t last, const char* expected) {
  if (value < 0 || value > last) invalid("%s is %d, expected %s", name, value, expected);
}

void check_same(const char* name, int64_t policy, int64_t cache) {
  if (policy != cache) {
    invalid("policy has %s %lld, the cache has %lld", name, ll{policy}, ll{cache});
  }
}

// ---- geometry -----------------------------------------------------------------------------

void check_scalars(kvp_op op, const kvp_args& args) {
  // Whether this build has the device is for the operation to say: others may check for one.
  check_enum("device", args.device, KVP_SIMT, "KVP_CPU (0), KVP_CUDA (1) or KVP_SIMT (2)");
  if (args.addressing != KVP_DENSE) {
    unsupported("addressing is %d, expected KVP_DENSE (0)", args.addressing);
  }
  check_at_least("threads", args.threads, 1);
  if (op != KVP_OP_SELECT && args.dtype != KVP_FLOAT32 && args.dtype != KVP_FLOAT16 &&
      args.dtype != KVP_BFLOAT16) {
    invalid("dtype is %d, expected KVP_FLOAT32 (0), KVP_FLOAT16 (1) or KVP_BFLOAT16 (2)",
            args.dtype);
  }
  if (args.pos_dtype != KVP_INT32 && args.pos_dtype != KVP_INT64) {
    invalid("pos_dtype is %d, expected KVP_INT32 (16) or KVP_INT64 (17)", args.pos_dtype);
  }
  check_at_least("n_layers", args.n_layers, 0);
  check_at_least("n_batch", args.n_batch, 0);
  check_at_least("n_heads", args.n_heads, 0);
  if (args.n_layers > 0 && args.layers == nullptr) invalid("layers is NULL");
  if (args.layer_size < sizeof(kvp_layer)) {
    invalid("layer_size is %zu, expected at least %zu", args.layer_size, sizeof(kvp_layer));
  }
  if (op != KVP_OP_SCORE) check_enum("order", args.order, KVP_ANY, "KVP_STABLE (0) or KVP_ANY (1)");
  if (selects(op)) {
    check_enum("mode", args.mode, KVP_MODEL, "KVP_PER_HEAD (0), KVP_UNION (1) or KVP_MODEL (2)");
    check_at_least("sinks", args.sinks, 0);
    check_at_least("recent", args.recent, 0);
  }
}

void check_count_strides(const char* name, const kvp_counts& counts) {
  if (counts.data == nullptr) return;
  constexpr int64_t kMaxStride = int64_t{1} << 40;
  if (std::max({counts.stride_layer, counts.stride_batch, counts.stride_head}) > kMaxStride ||
      counts.stride_layer < 0 || counts.stride_batch < 0 || counts.stride_head < 0) {
    invalid("%s has strides (%lld, %lld, %lld), expected 0 to 2^40", name, ll{counts.stride_layer},
            ll{counts.stride_batch}, ll{counts.stride_head});
  }
}

Strided view_memory(const kvp_args& args, const kvp_layer& layer, const kvp_view& view,
                    int64_t bytes_per_element, int64_t channels) {
  return Strided(view.data, channels * bytes_per_element,
                 {{{args.n_batch, view.stride_batch * bytes_per_element},
                   {args.n_heads, view.stride_head * bytes_per_element},
                   {layer.slots, view.stride_slot * bytes_per_element}}});
}

void check_view(const kvp_args& args, const char* name, int64_t index, const kvp_view& view,
                int64_t bytes_per_element, int64_t channels, bool written) {
  const kvp_layer& layer = layer_at(args, index);
  const struct {
    const char* name;
    int64_t count;
    int64_t stride;
  } dims[] = {{"batch", args.n_batch, view.stride_batch},
              {"head", args.n_heads, view.stride_head},
              {"slot", layer.slots, view.stride_slot}};
  // Keeps every byte offset, and the sums of them, inside int64.
  constexpr int64_t kMaxOffset = INT64_MAX / 64;
  for (const auto& dim : dims) {
    if (dim.stride < 0) {
      invalid("%s[layer %lld] has %s stride %lld, expected >= 0", name, ll{index}, dim.name,
              ll{dim.stride});
    }
    if (dim.count > 0 && dim.stride > kMaxOffset / dim.count) {
      invalid("%s[layer %lld] has %s stride %lld, which is beyond any address space", name,
              ll{index}, dim.name, ll{dim.stride});
    }
    if (written && dim.count > 1 && dim.stride == 0) {
      invalid(
          "%s[layer %lld] has stride 0 over its %lld %s entries (expanded memory), expected "
          "memory of its own for each",
          name, ll{index}, ll{dim.count}, dim.name);
    }
  }
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes_per_element) != 0) {
    invalid("%s[layer %lld] is at %p, expected alignment to its %lld-byte elements", name,
            ll{index}, view.data, ll{bytes_per_element});
  }
  if (written && view_memory(args, layer, view, bytes_per_element, channels).overlaps_itself()) {
    invalid(
        "%s[layer %lld] overlaps itself: strides (batch %lld, head %lld, slot %lld) for shape "
        "[%d, %d, %lld, %lld]",
        name, ll{index}, ll{view.stride_batch}, ll{view.stride_head}, ll{view.stride_slot},
        args.n_batch, args.n_heads, ll{layer.slots}, ll{channels});
  }
}

void check_present(const char* name, int64_t index, const kvp_view& view) {
  if (view.data == nullptr) invalid("%s[layer %lld] is NULL", name, ll{index});
}

void check_unit_channel(const char* name, int64_t index, const kvp_view& view) {
  if (view.stride_channel != 1) {
    invalid("%s[layer %lld] has channel stride %lld, expected 1", name, ll{index},
            ll{view.stride_channel});
  }
}

void check_layer_extension(const kvp_args& args, int64_t index) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&layer_at(args, index));
  if (std::any_of(bytes + sizeof(kvp_layer), bytes + args.layer_size,
                  [](unsigned char byte) { return byte != 0; })) {
    unsupported("layers[%lld] uses fields that this version of libkvp does not know", ll{index});
  }
}

void check_layer(kvp_op op, const kvp_args& args, int64_t index) {
  const kvp_layer& layer = layer_at(args, index);
  check_layer_extension(args, index);
  if (!is_present(op, layer)) return;
  if (layer.slots < 0 || layer.slots > kMaxSlots) {
    invalid("layers[%lld].slots is %lld, expected 0 to %lld", ll{index}, ll{layer.slots},
            ll{kMaxSlots});
  }
  if (op != KVP_OP_SELECT) {
    check_at_least("head_dim_k", args.head_dim_k, 1);
    check_at_least("head_dim_v", args.head_dim_v, 1);
    const int64_t bytes = element_bytes(args.dtype);
    check_present("v_cache", index, layer.v);
    check_unit_channel("k_cache", index, layer.k);
    check_unit_channel("v_cache", index, layer.v);
    check_view(args, "k_cache", index, layer.k, bytes, args.head_dim_k, moves_entries(op));
    check_view(args, "v_cache", index, layer.v, bytes, args.head_dim_v, moves_entries(op));
  }
  if (op == KVP_OP_SCORE || op == KVP_OP_EVICT ||
      (op == KVP_OP_COMPACT && args.new_pos != nullptr)) {
    check_present("pos", index, layer.pos);
  }
  if (layer.pos.data != nullptr) {
    const bool written = moves_entries(op) && !shares_positions(layer);
    check_view(args, "pos", index, layer.pos, element_bytes(args.pos_dtype), 1, written);
  }
  if (op == KVP_OP_SCORE) check_present("scores", index, layer.scores);
  if (op == KVP_OP_EVICT && args.policy == nullptr && layer.scores.data == nullptr) {
    invalid("scores[layer %lld] is NULL and so is policy, expected one of them", ll{index});
  }
  if (layer.scores.data != nullptr) {
    const bool written = op != KVP_OP_SELECT;
    check_view(args, "scores", index, layer.scores, sizeof(float), 1, written);
  }
}

void check_policy(kvp_op op, const kvp_args& args) {
  if (op == KVP_OP_SCORE && args.policy == nullptr) invalid("policy is NULL");
  if (args.policy == nullptr || (op != KVP_OP_SCORE && op != KVP_OP_EVICT)) return;
  const kvp_policy& policy = *args.policy;
  validate_policy_shape(&policy.shape);
  check_same("layers", policy.shape.layers, args.n_layers);
  check_same("kv_heads", policy.shape.kv_heads, args.n_heads);
  check_same("head_dim_k", policy.shape.head_dim_k, args.head_dim_k);
  check_same("head_dim_v", policy.shape.head_dim_v, args.head_dim_v);
  const bool fragments = args.device != KVP_CPU;
  const int32_t dtype = !fragments                  ? KVP_FLOAT32
                        : args.dtype == KVP_FLOAT16 ? KVP_FLOAT16
                                                    : KVP_BFLOAT16;
  if (policy.dtype != dtype) {
    invalid("policy.dtype is %d, expected %d on this device with a cache of dtype %d", policy.dtype,
            dtype, args.dtype);
  }
  if (policy.weights == nullptr) invalid("policy.weights is NULL");
  if (reinterpret_cast<uintptr_t>(policy.weights) % 64 != 0) {
    invalid("policy.weights is at %p, expected 64-byte alignment", policy.weights);
  }
  if (policy.positions == nullptr && policy.shape.position_dim > 0) {
    invalid("policy.positions is NULL, expected a table of %d rows", policy.shape.position_rows);
  }
  const uintptr_t alignment = fragments ? 16 : alignof(float);
  if (reinterpret_cast<uintptr_t>(policy.positions) % alignment != 0) {
    invalid("policy.positions is at %p, expected %zu-byte alignment", policy.positions,
            size_t{alignment});
  }
}

void check_outputs(kvp_op op, const kvp_args& args) {
  if (op == KVP_OP_SCORE) return;
  check_at_least("capacity", args.capacity, 0);
  const int64_t rows = int64_t{args.n_layers} * args.n_batch * args.n_heads;
  if (rows == 0) return;  // results without elements may have no address
  if (args.new_lengths == nullptr) invalid("new_lengths is NULL");
  if (op != KVP_OP_EVICT && args.kept == nullptr && args.capacity > 0) invalid("kept is NULL");
  if (args.capacity > INT64_MAX / 8 / rows) {
    invalid("capacity is %lld, which is beyond any address space", ll{args.capacity});
  }
}

// ---- counts -------------------------------------------------------------------------------

template <typename Visit>
void for_each_row(kvp_op op, const kvp_args& args, Visit&& visit) {
  for (int64_t l = 0; l < args.n_layers; ++l) {
    if (!is_present(op, layer_at(args, l))) continue;
    for (int64_t b = 0; b < args.n_batch; ++b) {
      for (int64_t h = 0; h < args.n_heads; ++h) visit(Row{l, b, h});
    }
  }
}

// Whether the host may read what a pointer of the arguments points to.
bool is_readable(const kvp_args& args) { return args.device != KVP_CUDA; }

void check_lengths(kvp_op op, const kvp_args& args) {
  if (args.lengths.data == nullptr && args.lengths.value < 0) return;
  if (args.lengths.data != nullptr && !is_readable(args)) return;
  for_each_row(op, args, [&](const Row& row) {
    const int64_t slots = layer_at(args, row.layer).slots;
    const int64_t length = count_at(args.lengths, row);
    if (length > slots) {
      invalid("lengths[layer %lld, batch %lld, head %lld] is %lld, expected <= %lld slots",
              ll{row.layer}, ll{row.batch}, ll{row.head}, ll{length}, ll{slots});
    }
  });
}

void check_budget(kvp_op op, const kvp_args& args) {
  if (args.budget.data == nullptr) {
    check_at_least("budget", args.budget.value, 0);
    return;
  }
  if (!is_readable(args)) return;
  for_each_row(op, args, [&](const Row& row) {
    const int64_t budget = count_at(args.budget, row);
    if (budget >= 0) return;
    if (args.mode == KVP_MODEL) {
      invalid("budget[batch %lld] is %lld, expected >= 0", ll{row.batch}, ll{budget});
    }
    if (args.mode == KVP_UNION) {
      invalid("budget[layer %lld, batch %lld] is %lld, expected >= 0", ll{row.layer}, ll{row.batch},
              ll{budget});
    }
    invalid("budget[layer %lld, batch %lld, head %lld] is %lld, expected >= 0", ll{row.layer},
            ll{row.batch}, ll{row.head}, ll{budget});
  });
}

void check_model_total(kvp_op op, const kvp_args& args) {
  for (int64_t b = 0; b < args.n_batch; ++b) {
    int64_t rows = 0;
    for (int64_t l = 0; l < args.n_layers; ++l) {
      if (!is_present(op, layer_at(args, l))) continue;
      for (int64_t h = 0; h < args.n_heads; ++h) rows += holds_entry(args, {l, b, h});
    }
    const int64_t budget = count_at(args.budget, {0, b, 0});
    if (budget < rows) {
      invalid(
          "budget[batch %lld] is %lld in model mode, expected >= %lld: one entry for each "
          "(layer, head) that holds any",
          ll{b}, ll{budget}, ll{rows});
    }
  }
}

// UNION keeps the same slots in all heads, which only means something if they hold the same.
void check_union_heads(kvp_op op, const kvp_args& args) {
  for_each_row(op, args, [&](const Row& row) {
    if (row.head == 0) return;
    const Row first{row.layer, row.batch, 0};
    if (length_at(args, row) != length_at(args, first)) {
      invalid(
          "lengths[layer %lld, batch %lld, head %lld] is %lld, expected %lld as in head 0 in "
          "union mode",
          ll{row.layer}, ll{row.batch}, ll{row.head}, ll{length_at(args, row)},
          ll{length_at(args, first)});
    }
    const kvp_layer& layer = layer_at(args, row.layer);
    if (layer.pos.data == nullptr || layer.pos.stride_head == 0) return;
    const Positions pos = positions_of(args, row), pos_first = positions_of(args, first);
    for (int64_t slot = 0; slot < layer.slots; ++slot) {
      if ((pos[slot] < 0) == (pos_first[slot] < 0)) continue;
      invalid(
          "pos[layer %lld, batch %lld, head %lld, slot %lld] is %lld and that of head 0 is %lld, "
          "expected the same padding in all heads in union mode",
          ll{row.layer}, ll{row.batch}, ll{row.head}, ll{slot}, ll{pos[slot]}, ll{pos_first[slot]});
    }
  });
}

void check_capacity(kvp_op op, const kvp_args& args) {
  if (args.kept == nullptr && args.new_pos == nullptr) return;
  const auto bound = [&](const kvp_counts& counts, auto read) {
    return counts.data == nullptr || is_readable(args) ? read() : kNoLimit;
  };
  for_each_row(op, args, [&](const Row& row) {
    const int64_t length = bound(args.lengths, [&] { return length_at(args, row); });
    const int64_t budget = bound(args.budget, [&] { return count_at(args.budget, row); });
    const int64_t most =
        std::min({layer_at(args, row.layer).slots, length, std::max<int64_t>(budget, 1)});
    if (most > args.capacity) {
      invalid(
          "capacity is %lld, expected >= %lld: what [layer %lld, batch %lld, head %lld] may "
          "keep",
          ll{args.capacity}, ll{most}, ll{row.layer}, ll{row.batch}, ll{row.head});
    }
  });
}

// Every entry of kept stays or moves to the front, and none is listed twice.
void check_kept(const kvp_args& args) {
  for_each_row(KVP_OP_COMPACT, args, [&](const Row& row) {
    const int64_t slots = layer_at(args, row.layer).slots;
    const int64_t n_kept = args.new_lengths[row_index(args, row)];
    const int32_t* kept = args.kept + row_index(args, row) * args.capacity;
    if (n_kept < 0 || n_kept > std::min(slots, args.capacity)) {
      invalid("new_lengths[layer %lld, batch %lld, head %lld] is %lld, expected 0 to %lld",
              ll{row.layer}, ll{row.batch}, ll{row.head}, ll{n_kept},
              ll{std::min(slots, args.capacity)});
    }
    int64_t last = args.order == KVP_STABLE ? -1 : n_kept - 1;
    for (int64_t i = 0; i < n_kept; ++i) {
      if (args.order == KVP_ANY && kept[i] == i) continue;
      if (kept[i] <= last || kept[i] >= slots) {
        invalid(
            "kept[layer %lld, batch %lld, head %lld, %lld] is %d, expected %lld < slot < %lld"
            " (%s order)",
            ll{row.layer}, ll{row.batch}, ll{row.head}, ll{i}, kept[i], ll{last}, ll{slots},
            args.order == KVP_STABLE ? "stable" : "any");
      }
      last = kept[i];
    }
  });
}

}  // namespace

void validate_geometry(kvp_op op, const kvp_args& args) {
  check_enum("op", op, KVP_OP_EVICT, "a kvp_op");
  check_scalars(op, args);
  check_outputs(op, args);
  check_count_strides("lengths", args.lengths);
  if (selects(op)) check_count_strides("budget", args.budget);
  for (int64_t l = 0; l < args.n_layers; ++l) check_layer(op, args, l);
  check_policy(op, args);
}

void validate_counts(kvp_op op, const kvp_args& args) {
  check_lengths(op, args);
  if (selects(op)) {
    check_budget(op, args);
    if (args.mode == KVP_MODEL && is_readable(args)) check_model_total(op, args);
    if (args.mode == KVP_UNION && is_readable(args)) check_union_heads(op, args);
    check_capacity(op, args);
  }
  if (reads_kept(op) && is_readable(args)) check_kept(args);
}

void validate_memory(kvp_op op, const kvp_args& args) {
  // Kept between calls: steady-state eviction allocates nothing.
  thread_local std::vector<NamedMemory> memory;
  memory.clear();
  const auto add_view = [&](const char* name, int64_t index, const kvp_view& view,
                            int64_t bytes_per_element, int64_t channels, bool written) {
    if (view.data == nullptr) return;
    const Strided strided =
        view_memory(args, layer_at(args, index), view, bytes_per_element, channels);
    if (!strided.empty()) memory.push_back({name, index, strided, written});
  };
  const auto add_block = [&](const char* name, const void* data, int64_t bytes, bool written) {
    if (data != nullptr && bytes > 0) memory.push_back({name, -1, Strided(data, bytes), written});
  };
  const auto add_counts = [&](const char* name, const kvp_counts& counts) {
    if (counts.data == nullptr || args.n_layers == 0 || args.n_batch == 0) return;
    constexpr auto bytes = int64_t{sizeof(int32_t)};
    memory.push_back({name, -1,
                      Strided(counts.data, bytes,
                              {{{args.n_layers, counts.stride_layer * bytes},
                                {args.n_batch, counts.stride_batch * bytes},
                                {args.n_heads, counts.stride_head * bytes}}}),
                      false});
  };

  const int64_t bytes = element_bytes(args.dtype);
  const int64_t pos_bytes = element_bytes(args.pos_dtype);
  for (int64_t l = 0; l < args.n_layers; ++l) {
    const kvp_layer& layer = layer_at(args, l);
    if (!is_present(op, layer)) continue;
    if (op != KVP_OP_SELECT) {
      add_view("k_cache", l, layer.k, bytes, args.head_dim_k, moves_entries(op));
      add_view("v_cache", l, layer.v, bytes, args.head_dim_v, moves_entries(op));
    }
    add_view("pos", l, layer.pos, pos_bytes, 1, moves_entries(op) && !shares_positions(layer));
    add_view("scores", l, layer.scores, sizeof(float), 1, op != KVP_OP_SELECT);
  }
  const int64_t rows = int64_t{args.n_layers} * args.n_batch * args.n_heads;
  if (op != KVP_OP_SCORE) {
    const bool writes_selection = selects(op);
    add_block("new_lengths", args.new_lengths, rows * int64_t{sizeof(int32_t)}, writes_selection);
    add_block("kept", args.kept, rows * args.capacity * int64_t{sizeof(int32_t)}, writes_selection);
    add_block("changed", args.changed, sizeof(int32_t), true);
    if (op != KVP_OP_SELECT) {
      add_block("new_pos", args.new_pos, rows * args.capacity * pos_bytes, true);
    }
  }
  if (selects(op)) add_counts("budget", args.budget);
  add_counts("lengths", args.lengths);
  add_block("workspace", args.workspace, static_cast<int64_t>(args.workspace_bytes), true);
  refuse_overlaps(memory);
}

}  // namespace kvp
