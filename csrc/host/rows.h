// Rows of a cache as host code reads them from kvp_args: pointers, counts and valid entries.
#ifndef KVP_HOST_ROWS_H
#define KVP_HOST_ROWS_H

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kvp/kvp.h"

namespace kvp {

// One (layer, sequence, KV head).
struct Row {
  int64_t layer;
  int64_t batch;
  int64_t head;
};

// Bytes of one element; 0 for a value that is no kvp_dtype.
constexpr int64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case KVP_FLOAT32:
    case KVP_INT32:
      return 4;
    case KVP_FLOAT16:
    case KVP_BFLOAT16:
      return 2;
    case KVP_INT64:
      return 8;
    default:
      return 0;
  }
}

inline const kvp_layer& layer_at(const kvp_args& args, int64_t layer) {
  const auto* base = reinterpret_cast<const std::byte*>(args.layers);
  return *reinterpret_cast<const kvp_layer*>(base + layer * static_cast<int64_t>(args.layer_size));
}

// Whether the operation works on this layer or leaves it as it is.
inline bool is_present(kvp_op op, const kvp_layer& layer) {
  return (op == KVP_OP_SELECT ? layer.scores.data : layer.k.data) != nullptr;
}

inline bool shares_positions(const kvp_layer& layer) {
  return layer.pos.stride_batch == 0 || layer.pos.stride_head == 0;
}

inline std::byte* row_data(const kvp_view& view, int64_t bytes_per_element, const Row& row) {
  return static_cast<std::byte*>(view.data) +
         (row.batch * view.stride_batch + row.head * view.stride_head) * bytes_per_element;
}

// Index of a row, and of its first slot, in the dense outputs [L, B, H] and [L, B, H, N].
inline int64_t row_index(const kvp_args& args, const Row& row) {
  return (row.layer * args.n_batch + row.batch) * args.n_heads + row.head;
}

inline int64_t count_at(const kvp_counts& counts, const Row& row) {
  if (counts.data == nullptr) return counts.value;
  return counts.data[row.layer * counts.stride_layer + row.batch * counts.stride_batch +
                     row.head * counts.stride_head];
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Most entries that may be valid in a row.
inline int64_t length_at(const kvp_args& args, const Row& row) {
  if (args.lengths.data == nullptr && args.lengths.value < 0) return kNoLimit;
  const int64_t length = count_at(args.lengths, row);
  return length < 0 ? 0 : length;
}

// The positions of one row. Without data every slot counts as positioned.
struct Positions {
  const void* data = nullptr;
  int64_t stride = 1;
  bool is_int64 = true;

  int64_t operator[](int64_t slot) const {
    if (data == nullptr) return slot;
    return is_int64 ? static_cast<const int64_t*>(data)[slot * stride]
                    : static_cast<const int32_t*>(data)[slot * stride];
  }
};

Positions positions_of(const kvp_args& args, const Row& row);

// The valid entries of a row are those with a position >= 0 in slots [0, end).
struct Validity {
  int64_t count = 0;
  int64_t end = 0;

  // No padding before or between the entries.
  bool is_prefix() const { return count == end; }
};

Validity find_valid(const kvp_args& args, const Row& row);

// Whether the row holds an entry; cheaper than find_valid.
bool holds_entry(const kvp_args& args, const Row& row);

}  // namespace kvp

#endif  // KVP_HOST_ROWS_H
