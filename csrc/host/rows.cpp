#include "host/rows.h"

#include <algorithm>

namespace kvp {
namespace {

template <typename T>
Validity find_valid(const T* pos, int64_t stride, int64_t slots, int64_t length) {
  // Blocks are counted without branches; only the one that holds the last entry is walked.
  constexpr int64_t kBlock = 256;
  Validity valid;
  int64_t begin = 0;
  for (; begin < slots; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, slots);
    int64_t positioned = 0;
    if (stride == 1) {
      for (int64_t slot = begin; slot < end; ++slot) positioned += pos[slot] >= 0;
    } else {
      for (int64_t slot = begin; slot < end; ++slot) positioned += pos[slot * stride] >= 0;
    }
    if (positioned == 0) continue;
    if (positioned == end - begin && valid.count + positioned <= length) {
      valid.count += positioned;
      valid.end = end;
      continue;
    }
    for (int64_t slot = begin; slot < end && valid.count < length; ++slot) {
      if (pos[slot * stride] < 0) continue;
      ++valid.count;
      valid.end = slot + 1;
    }
    if (valid.count == length) break;
  }
  return valid;
}

}  // namespace

Positions positions_of(const kvp_args& args, const Row& row) {
  const kvp_view& pos = layer_at(args, row.layer).pos;
  if (pos.data == nullptr) return {};
  return {row_data(pos, element_bytes(args.pos_dtype), row), pos.stride_slot,
          args.pos_dtype == KVP_INT64};
}

Validity find_valid(const kvp_args& args, const Row& row) {
  const int64_t slots = layer_at(args, row.layer).slots;
  const int64_t length = std::min(length_at(args, row), slots);
  const Positions pos = positions_of(args, row);
  if (length == 0) return {};
  if (pos.data == nullptr) return {length, length};
  return pos.is_int64
             ? find_valid(static_cast<const int64_t*>(pos.data), pos.stride, slots, length)
             : find_valid(static_cast<const int32_t*>(pos.data), pos.stride, slots, length);
}

bool holds_entry(const kvp_args& args, const Row& row) {
  if (length_at(args, row) == 0) return false;
  const int64_t slots = layer_at(args, row.layer).slots;
  const Positions pos = positions_of(args, row);
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (pos[slot] >= 0) return true;
  }
  return false;
}

}  // namespace kvp
