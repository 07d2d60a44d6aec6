// The packed weight layout, version 1: where each tensor of a policy lies in the fp32 block of
// one (layer, KV head). Everything that packs, unpacks or evaluates a policy reads offsets from
// here.
//
// Sections follow the order of for_each_policy_tensor and start at multiples of 16 floats (one
// cache line). A matrix [out, in] is stored as panels of 16 outputs, [ceil(out / 16)][in][16], so
// that a kernel reads one input's weights for 16 outputs with consecutive vector loads. A vector
// keeps its order. Both are padded with zeros to whole multiples of 16, which makes the results
// of padded lanes 0 without masks.
#ifndef KVP_HOST_PACKED_LAYOUT_H
#define KVP_HOST_PACKED_LAYOUT_H

#include <cstdint>

#include "kvp/kvp.h"

namespace kvp {

constexpr int64_t kPanelWidth = 16;

constexpr int64_t round_up_to_panel(int64_t n) {
  return (n + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
}

// Floats of one section; cols == 0 is a vector of `rows` elements.
constexpr int64_t section_floats(int64_t rows, int64_t cols) {
  return round_up_to_panel(rows) * (cols == 0 ? 1 : cols);
}

// Where element (row, col) of a matrix lies in its section.
constexpr int64_t panel_index(int64_t row, int64_t col, int64_t cols) {
  return (row / kPanelWidth * cols + col) * kPanelWidth + row % kPanelWidth;
}

struct PackedLayout;

// Calls visit(name, offset_member, rows, cols) for every tensor of the policy in packed order.
template <typename Visit>
constexpr void for_each_policy_tensor(const kvp_policy_shape& shape, Visit&& visit);

// Offsets in floats from the start of a block; -1 for tensors that the shape's flags omit.
struct PackedLayout {
  int64_t gain_k_weight = -1;
  int64_t gain_k_bias = -1;
  int64_t gain_k_offset = -1;
  int64_t gain_v_weight = -1;
  int64_t gain_v_bias = -1;
  int64_t gain_v_offset = -1;
  int64_t input_weight = -1;
  int64_t input_bias = -1;
  int64_t input_gain_k = -1;
  int64_t input_gain_v = -1;
  int64_t norm1_weight = -1;
  int64_t norm1_bias = -1;
  int64_t hidden_weight = -1;
  int64_t hidden_bias = -1;
  int64_t norm2_weight = -1;
  int64_t norm2_bias = -1;
  int64_t output_weight = -1;
  int64_t output_bias = -1;

  int64_t floats = 0;  // of the whole block

  explicit constexpr PackedLayout(const kvp_policy_shape& shape) {
    for_each_policy_tensor(
        shape, [this](const char*, int64_t PackedLayout::* offset, int32_t rows, int32_t cols) {
          this->*offset = floats;
          floats += section_floats(rows, cols);
        });
  }
};

template <typename Visit>
constexpr void for_each_policy_tensor(const kvp_policy_shape& shape, Visit&& visit) {
  using Layout = PackedLayout;
  const bool gains = shape.flags & KVP_POLICY_GAINS;
  const bool norms = shape.flags & KVP_POLICY_NORMS;
  const int32_t dim_k = shape.head_dim_k;
  const int32_t dim_v = shape.head_dim_v;
  const int32_t hidden = shape.hidden;

  if (gains) {
    visit("gain_k.weight", &Layout::gain_k_weight, dim_k, dim_k);
    visit("gain_k.bias", &Layout::gain_k_bias, dim_k, 0);
    visit("gain_k.offset", &Layout::gain_k_offset, 1, 0);
    visit("gain_v.weight", &Layout::gain_v_weight, dim_v, dim_v);
    visit("gain_v.bias", &Layout::gain_v_bias, dim_v, 0);
    visit("gain_v.offset", &Layout::gain_v_offset, 1, 0);
  }
  visit("input.weight", &Layout::input_weight, hidden, dim_k + dim_v + shape.position_dim);
  visit("input.bias", &Layout::input_bias, hidden, 0);
  if (gains) {
    visit("input.gain_k", &Layout::input_gain_k, hidden, 0);
    visit("input.gain_v", &Layout::input_gain_v, hidden, 0);
  }
  if (norms) {
    visit("norm1.weight", &Layout::norm1_weight, hidden, 0);
    visit("norm1.bias", &Layout::norm1_bias, hidden, 0);
  }
  visit("hidden.weight", &Layout::hidden_weight, hidden, hidden);
  visit("hidden.bias", &Layout::hidden_bias, hidden, 0);
  if (norms) {
    visit("norm2.weight", &Layout::norm2_weight, hidden, 0);
    visit("norm2.bias", &Layout::norm2_bias, hidden, 0);
  }
  visit("output.weight", &Layout::output_weight, hidden, 0);
  visit("output.bias", &Layout::output_bias, 1, 0);
}

}  // namespace kvp

#endif  // KVP_HOST_PACKED_LAYOUT_H
