// Packing of policy weights: the C ABI over packed_layout.h.
#include "host/policy.h"

#include <algorithm>
#include <cmath>

#include "host/error.h"
#include "host/packed_layout.h"

namespace kvp {
namespace {

// Far beyond any use, and small enough that no size computed from a shape overflows int64.
constexpr int32_t kMaxWidth = 1 << 16;
constexpr int32_t kMaxRows = 1 << 28;

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    invalid("policy %s is %lld, expected %lld to %lld", name, static_cast<long long>(value),
            static_cast<long long>(low), static_cast<long long>(high));
  }
}

// Calls visit(index, packed_section, rows, cols) for every tensor of a block.
template <typename Float, typename Visit>
void for_each_section(const kvp_policy_shape& shape, Float* block, Visit&& visit) {
  const PackedLayout layout(shape);
  int32_t index = 0;
  for_each_policy_tensor(
      shape, [&](const char* name, int64_t PackedLayout::* offset, int32_t rows, int32_t cols) {
        visit(index++, name, block + layout.*offset, int64_t{rows}, int64_t{cols});
      });
}

void check_pointers(const char* block_name, const void* block, const void* tensors) {
  if (block == nullptr) invalid("%s is NULL", block_name);
  if (tensors == nullptr) invalid("tensors is NULL");
}

// Where row-major element `index` of a tensor lies in its section.
int64_t section_index(int64_t index, int64_t cols) {
  return cols == 0 ? index : panel_index(index / cols, index % cols, cols);
}

int64_t elements(int64_t rows, int64_t cols) { return rows * (cols == 0 ? 1 : cols); }

}  // namespace

void validate_policy_shape(const kvp_policy_shape* shape) {
  if (shape == nullptr) invalid("policy shape is NULL");
  check_range("layers", shape->layers, 1, kMaxWidth);
  check_range("kv_heads", shape->kv_heads, 1, kMaxWidth);
  check_range("head_dim_k", shape->head_dim_k, 1, kMaxWidth);
  check_range("head_dim_v", shape->head_dim_v, 1, kMaxWidth);
  check_range("hidden", shape->hidden, 1, kMaxWidth);
  check_range("position_dim", shape->position_dim, 0, kMaxWidth);
  check_range("position_rows", shape->position_rows, 1, kMaxRows);
  constexpr uint32_t known = KVP_POLICY_GAINS | KVP_POLICY_NORMS | KVP_POLICY_SHARED_POSITIONS;
  if (shape->flags & ~known) {
    unsupported("policy flags are 0x%x, this version knows 0x%x", shape->flags, known);
  }
  if (!std::isfinite(shape->norm_eps) || shape->norm_eps < 0) {
    invalid("policy norm_eps is %g, expected a finite value >= 0", double{shape->norm_eps});
  }
}

}  // namespace kvp

extern "C" {

kvp_status kvp_policy_tensors(const kvp_policy_shape* shape, kvp_policy_tensor* tensors,
                              int32_t capacity, int32_t* count) {
  return kvp::guarded([&] {
    kvp::validate_policy_shape(shape);
    if (count == nullptr) kvp::invalid("count is NULL");
    int32_t n = 0;
    kvp::for_each_policy_tensor(
        *shape, [&](const char* name, int64_t kvp::PackedLayout::*, int32_t rows, int32_t cols) {
          if (tensors != nullptr && n < capacity) tensors[n] = {name, rows, cols};
          ++n;
        });
    *count = n;
    if (tensors != nullptr && n > capacity) {
      kvp::invalid("capacity is %d, expected at least %d tensors", capacity, n);
    }
  });
}

kvp_status kvp_policy_block_floats(const kvp_policy_shape* shape, int64_t* floats) {
  return kvp::guarded([&] {
    kvp::validate_policy_shape(shape);
    if (floats == nullptr) kvp::invalid("floats is NULL");
    *floats = kvp::PackedLayout(*shape).floats;
  });
}

kvp_status kvp_policy_pack(const kvp_policy_shape* shape, const float* const* tensors,
                           float* block) {
  return kvp::guarded([&] {
    kvp::validate_policy_shape(shape);
    kvp::check_pointers("block", block, tensors);
    kvp::for_each_section(*shape, block, [&](int32_t i, const char* name, float*, auto, auto) {
      if (tensors[i] == nullptr) kvp::invalid("tensors[%d] (%s) is NULL", i, name);
    });
    std::fill_n(block, kvp::PackedLayout(*shape).floats, 0.0f);
    kvp::for_each_section(*shape, block,
                          [&](int32_t i, const char*, float* section, int64_t rows, int64_t cols) {
                            const int64_t n = kvp::elements(rows, cols);
                            for (int64_t j = 0; j < n; ++j) {
                              section[kvp::section_index(j, cols)] = tensors[i][j];
                            }
                          });
  });
}

kvp_status kvp_policy_unpack(const kvp_policy_shape* shape, const float* block,
                             float* const* tensors) {
  return kvp::guarded([&] {
    kvp::validate_policy_shape(shape);
    kvp::check_pointers("block", block, tensors);
    kvp::for_each_section(*shape, block,
                          [&](int32_t i, const char* name, const float*, auto, auto) {
                            if (tensors[i] == nullptr)
                              kvp::invalid("tensors[%d] (%s) is NULL", i, name);
                          });
    kvp::for_each_section(
        *shape, block,
        [&](int32_t i, const char*, const float* section, int64_t rows, int64_t cols) {
          const int64_t n = kvp::elements(rows, cols);
          for (int64_t j = 0; j < n; ++j) tensors[i][j] = section[kvp::section_index(j, cols)];
        });
  });
}

}  // extern "C"
