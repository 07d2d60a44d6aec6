#include "cpu/compact.h"

#include <cstring>
#include <limits>

namespace kvp::cpu {
namespace {

// The entries that move: runs of consecutive slots, with what already is in place left out.
template <typename Move>
void for_each_run(const int32_t* kept, int64_t n_kept, Move move) {
  int64_t begin = 0;
  while (begin < n_kept) {
    const int64_t distance = kept[begin] - begin;
    int64_t end = begin + 1;
    while (end < n_kept && kept[end] - end == distance) ++end;
    if (distance != 0) move(kept[begin], begin, end - begin);
    begin = end;
  }
}

void move_entries(std::byte* row, int64_t stride_bytes, int64_t entry_bytes, const int32_t* kept,
                  int64_t n_kept) {
  if (stride_bytes == entry_bytes) {
    for_each_run(kept, n_kept, [=](int64_t from, int64_t to, int64_t count) {
      std::memmove(row + to * stride_bytes, row + from * stride_bytes,
                   static_cast<size_t>(count * entry_bytes));
    });
    return;
  }
  for_each_run(kept, n_kept, [=](int64_t from, int64_t to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(row + (to + i) * stride_bytes, row + (from + i) * stride_bytes,
                  static_cast<size_t>(entry_bytes));
    }
  });
}

void move_view(const kvp_view& view, int64_t bytes_per_element, int64_t channels, const Row& row,
               const int32_t* kept, int64_t n_kept) {
  move_entries(row_data(view, bytes_per_element, row), view.stride_slot * bytes_per_element,
               channels * bytes_per_element, kept, n_kept);
}

// What stands past the new length must not look alive to the next call.
template <typename T>
void fill_tail(T* row, int64_t stride, int64_t begin, int64_t end, T value) {
  for (int64_t slot = begin; slot < end; ++slot) row[slot * stride] = value;
}

}  // namespace

void compact_row(const kvp_args& args, const Row& row, const int32_t* kept, int64_t n_kept) {
  const kvp_layer& layer = layer_at(args, row.layer);
  const int64_t bytes = element_bytes(args.dtype);
  move_view(layer.k, bytes, args.head_dim_k, row, kept, n_kept);
  move_view(layer.v, bytes, args.head_dim_v, row, kept, n_kept);
  if (layer.pos.data != nullptr && !shares_positions(layer)) {
    move_view(layer.pos, element_bytes(args.pos_dtype), 1, row, kept, n_kept);
    std::byte* pos = row_data(layer.pos, element_bytes(args.pos_dtype), row);
    if (args.pos_dtype == KVP_INT64) {
      fill_tail(reinterpret_cast<int64_t*>(pos), layer.pos.stride_slot, n_kept, layer.slots,
                int64_t{-1});
    } else {
      fill_tail(reinterpret_cast<int32_t*>(pos), layer.pos.stride_slot, n_kept, layer.slots, -1);
    }
  }
  if (layer.scores.data != nullptr) {
    move_view(layer.scores, sizeof(float), 1, row, kept, n_kept);
    auto* scores = reinterpret_cast<float*>(row_data(layer.scores, sizeof(float), row));
    fill_tail(scores, layer.scores.stride_slot, n_kept, layer.slots,
              std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace kvp::cpu
