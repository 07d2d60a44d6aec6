// Packs policies into the form that tensor cores read; fragment_layout.h defines it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "host/arena.h"
#include "host/error.h"
#include "host/fragment_layout.h"
#include "host/packed_layout.h"
#include "host/policy.h"

namespace kvp {
namespace {

constexpr int32_t ceil_div(int32_t n, int32_t d) { return (n + d - 1) / d; }

void check_supported(const char* name, int32_t value, int32_t most) {
  if (value > most) {
    unsupported("policy has %s %d, the CUDA kernels support up to %d", name, value, most);
  }
}

// ---- 16-bit formats, rounded to nearest even ---------------------------------------------------

uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

uint16_t to_fp16(float x) {
  const auto sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7E00;
  if (magnitude >= 65520.0f) return sign | 0x7C00;
  // Adding this power of two leaves the 11 bits that fp16 keeps at the end of the sum's mantissa.
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const float unit = std::ldexp(1.0f, exponent - 10);
  const float rounded = std::nearbyint(magnitude / unit) * unit;
  if (rounded < std::ldexp(1.0f, -14)) {
    return sign | static_cast<uint16_t>(rounded / std::ldexp(1.0f, -24));
  }
  const auto bits = std::bit_cast<uint32_t>(rounded);
  return sign | static_cast<uint16_t>(((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3FF));
}

uint16_t to_half(float x, int32_t dtype) {
  constexpr float kFp16Overflows = 65520.0f;
  constexpr float kBf16Overflows = 0x1.FFp127f;
  const bool fp16 = dtype == KVP_FLOAT16;
  const float magnitude = std::fabs(x);
  if (std::isfinite(x) && magnitude >= (fp16 ? kFp16Overflows : kBf16Overflows)) {
    invalid("policy has a weight of %g, beyond %s", double{x}, fp16 ? "float16" : "bfloat16");
  }
  return fp16 ? to_fp16(x) : to_bf16(x);
}

void check_dtype(int32_t dtype) {
  if (dtype != KVP_FLOAT16 && dtype != KVP_BFLOAT16) {
    invalid("dtype is %d, expected KVP_FLOAT16 (1) or KVP_BFLOAT16 (2)", dtype);
  }
}

// ---- the stream of tiles -----------------------------------------------------------------------

enum class Inputs { kCache, kActivations };

// Which of a tile's inputs the i-th half of lane quarter q is for.
constexpr int32_t tile_input(Inputs inputs, int32_t q, int32_t i) {
  return inputs == Inputs::kCache ? 8 * q + i : 8 * (i / 2) + 2 * q + i % 2;
}

// Columns [first, first + count) of a packed matrix.
struct Columns {
  const float* section;
  int32_t rows;
  int32_t cols;  // of the whole matrix
  int32_t first;
  int32_t count;

  float at(int32_t row, int32_t col) const {
    return row < rows && col < count ? section[panel_index(row, first + col, cols)] : 0.0f;
  }
};

class TileWriter {
 public:
  TileWriter(uint16_t* out, int32_t dtype) : out_(out), dtype_(dtype) {}

  // For every 32 inputs of a matrix a stage with the gains of outputs [first, first + 128).
  void write_gains(const Columns& from, int32_t first) {
    for (int32_t col = 0; col < from.count; col += kTileInputs) {
      write_outputs(from, first, kStageTiles, col, Inputs::kCache);
    }
  }

  // For every 32 inputs all outputs, in the order of a narrow or a wide policy.
  void write_layer(const Columns& from, int32_t hidden, Inputs inputs) {
    for (int32_t col = 0; col < from.count; col += kTileInputs) {
      if (hidden == kNarrow) {
        write_outputs(from, 0, kNarrow / kTileOutputs, col, inputs);
        continue;
      }
      constexpr int32_t kHalfStage = kStageTiles / 2;
      for (int32_t row = 0; row < kWide / 2; row += kHalfStage * kTileOutputs) {
        write_outputs(from, row, kHalfStage, col, inputs);
        write_outputs(from, row + kWide / 2, kHalfStage, col, inputs);
      }
    }
  }

 private:
  void write_outputs(const Columns& from, int32_t row, int32_t tiles, int32_t col, Inputs inputs) {
    for (int32_t t = 0; t < tiles; ++t) write_tile(from, row + t * kTileOutputs, col, inputs);
  }

  void write_tile(const Columns& from, int32_t row, int32_t col, Inputs inputs) {
    for (int32_t g = 0; g < kTileOutputs; ++g) {
      for (int32_t q = 0; q < 4; ++q) {
        for (int32_t i = 0; i < 8; ++i) {
          *out_++ = to_half(from.at(row + g, col + tile_input(inputs, q, i)), dtype_);
        }
      }
    }
  }

  uint16_t* out_;
  int32_t dtype_;
};

void write_vectors(const kvp_policy_shape& shape, const FragmentLayout& layout, const float* block,
                   float* out) {
  const PackedLayout at(shape);
  const auto copy = [&](int64_t section, int32_t count, int32_t to) {
    if (section >= 0) std::copy_n(block + section, count, out + to);
  };
  const auto copy_hidden = [&](int64_t section, FragmentVector vector) {
    copy(section, shape.hidden, vector * layout.hidden);
  };
  copy_hidden(at.input_bias, kInputBias);
  copy_hidden(at.input_gain_k, kInputGainK);
  copy_hidden(at.input_gain_v, kInputGainV);
  if (!(shape.flags & KVP_POLICY_NORMS)) {
    std::fill_n(out + kNorm1Weight * layout.hidden, shape.hidden, 1.0f);
    std::fill_n(out + kNorm2Weight * layout.hidden, shape.hidden, 1.0f);
  }
  copy_hidden(at.norm1_weight, kNorm1Weight);
  copy_hidden(at.norm1_bias, kNorm1Bias);
  copy_hidden(at.hidden_bias, kHiddenBias);
  copy_hidden(at.norm2_weight, kNorm2Weight);
  copy_hidden(at.norm2_bias, kNorm2Bias);
  copy_hidden(at.output_weight, kOutputWeight);
  copy(at.gain_k_bias, shape.head_dim_k, layout.gain_k_bias);
  copy(at.gain_v_bias, shape.head_dim_v, layout.gain_v_bias);
  copy(at.gain_k_offset, 1, layout.gain_k_offset);
  copy(at.gain_v_offset, 1, layout.gain_v_offset);
  copy(at.output_bias, 1, layout.output_bias);
}

void write_tiles(const kvp_policy_shape& shape, const FragmentLayout& layout, int32_t dtype,
                 const float* block, uint16_t* out) {
  const PackedLayout at(shape);
  TileWriter tiles(out, dtype);
  const auto write_gain = [&](int64_t section, int32_t dim, int32_t groups) {
    for (int32_t group = 0; group < groups; ++group) {
      tiles.write_gains({block + section, dim, dim, 0, dim}, group * kGainOutputs);
    }
  };
  write_gain(at.gain_v_weight, shape.head_dim_v, layout.gain_groups_v);
  write_gain(at.gain_k_weight, shape.head_dim_k, layout.gain_groups_k);
  const auto write_input = [&](int32_t first, int32_t count) {
    const int32_t inputs = shape.head_dim_k + shape.head_dim_v + shape.position_dim;
    tiles.write_layer({block + at.input_weight, shape.hidden, inputs, first, count}, layout.hidden,
                      Inputs::kCache);
  };
  write_input(shape.head_dim_k, shape.head_dim_v);
  write_input(0, shape.head_dim_k);
  write_input(shape.head_dim_k + shape.head_dim_v, shape.position_dim);
  // Activations that do not exist are multiplied with the zeros after the last tile.
  tiles.write_layer({block + at.hidden_weight, shape.hidden, shape.hidden, 0, shape.hidden},
                    layout.hidden, Inputs::kActivations);
}

FragmentLayout layout_of_width(const kvp_policy_shape& shape, int32_t hidden) {
  const bool gains = shape.flags & KVP_POLICY_GAINS;
  FragmentLayout layout{};
  layout.hidden = hidden;
  layout.blocks_k = ceil_div(shape.head_dim_k, kTileInputs);
  layout.blocks_v = ceil_div(shape.head_dim_v, kTileInputs);
  layout.blocks_p = ceil_div(shape.position_dim, kTileInputs);
  layout.gain_groups_k = gains ? ceil_div(shape.head_dim_k, kGainOutputs) : 0;
  layout.gain_groups_v = gains ? ceil_div(shape.head_dim_v, kGainOutputs) : 0;

  layout.gain_k_bias = kFragmentVectors * hidden;
  layout.gain_v_bias = layout.gain_k_bias + layout.gain_groups_k * kGainOutputs;
  layout.gain_k_offset = layout.gain_v_bias + layout.gain_groups_v * kGainOutputs;
  layout.gain_v_offset = layout.gain_k_offset + 1;
  layout.output_bias = layout.gain_k_offset + 2;
  layout.vector_floats = layout.gain_k_offset + 4;

  const int32_t gain_blocks =
      layout.gain_groups_k * layout.blocks_k + layout.gain_groups_v * layout.blocks_v;
  const int32_t blocks = layout.blocks_k + layout.blocks_v + layout.blocks_p + hidden / kTileInputs;
  const int32_t tiles = gain_blocks * kStageTiles + blocks * (hidden / kTileOutputs);
  layout.stages = ceil_div(tiles, kStageTiles);
  layout.block_bytes = int64_t{layout.vector_floats} * 4 + int64_t{layout.stages} * kStageBytes;
  layout.position_row_bytes = 2 * round_up(shape.position_dim, kTileInputs);
  return layout;
}

}  // namespace

FragmentLayout fragment_layout(const kvp_policy_shape& shape) {
  check_supported("hidden", shape.hidden, kWide);
  check_supported("head_dim_k", shape.head_dim_k, kMaxHeadDim);
  check_supported("head_dim_v", shape.head_dim_v, kMaxHeadDim);
  check_supported("position_dim", shape.position_dim, kMaxPositionDim);
  const bool gains = shape.flags & KVP_POLICY_GAINS;
  const FragmentLayout narrow = layout_of_width(shape, kNarrow);
  if (shape.hidden <= kNarrow && !gains && narrow.stages <= kMaxNarrowStages) return narrow;
  return layout_of_width(shape, kWide);
}

}  // namespace kvp

extern "C" {

kvp_status kvp_policy_fragment_bytes(const kvp_policy_shape* shape, int64_t* block_bytes,
                                     int64_t* position_row_bytes) {
  return kvp::guarded([&] {
    kvp::validate_policy_shape(shape);
    if (block_bytes == nullptr) kvp::invalid("block_bytes is NULL");
    if (position_row_bytes == nullptr) kvp::invalid("position_row_bytes is NULL");
    const kvp::FragmentLayout layout = kvp::fragment_layout(*shape);
    *block_bytes = layout.block_bytes;
    *position_row_bytes = layout.position_row_bytes;
  });
}

kvp_status kvp_policy_fragments(const kvp_policy_shape* shape, int32_t dtype, const float* block,
                                void* fragments) {
  return kvp::guarded([&] {
    kvp::validate_policy_shape(shape);
    kvp::check_dtype(dtype);
    if (block == nullptr) kvp::invalid("block is NULL");
    if (fragments == nullptr) kvp::invalid("fragments is NULL");
    const kvp::FragmentLayout layout = kvp::fragment_layout(*shape);
    std::memset(fragments, 0, static_cast<size_t>(layout.block_bytes));
    auto* vectors = static_cast<float*>(fragments);
    kvp::write_vectors(*shape, layout, block, vectors);
    kvp::write_tiles(*shape, layout, dtype, block,
                     reinterpret_cast<uint16_t*>(vectors + layout.vector_floats));
  });
}

kvp_status kvp_policy_position_fragments(const kvp_policy_shape* shape, int32_t dtype,
                                         const float* positions, int64_t rows, void* fragments) {
  return kvp::guarded([&] {
    kvp::validate_policy_shape(shape);
    kvp::check_dtype(dtype);
    if (rows < 0) kvp::invalid("rows is %lld, expected >= 0", static_cast<long long>(rows));
    if (shape->position_dim == 0 || rows == 0) return;
    if (positions == nullptr) kvp::invalid("positions is NULL");
    if (fragments == nullptr) kvp::invalid("fragments is NULL");
    const int64_t width = kvp::fragment_layout(*shape).position_row_bytes / 2;
    auto* out = static_cast<uint16_t*>(fragments);
    std::fill_n(out, rows * width, uint16_t{0});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < shape->position_dim; ++i) {
        out[row * width + i] = kvp::to_half(positions[row * shape->position_dim + i], dtype);
      }
    }
  });
}

}  // extern "C"
