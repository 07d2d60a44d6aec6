// The form of a policy that tensor cores read, version 1: what a GPU keeps of one (layer, KV head).
//
// A block is [vectors in fp32][tiles of 16-bit weights]. A tile is the weights from 32 inputs to 8
// outputs, 512 bytes, in the order in which the lanes of a warp hold them: lane 4 g + q has output
// g's weights for 8 inputs, which are
//   of keys, values and positions: 8 q .. 8 q + 7, so that a lane's part of an entry is one
//     aligned load of 16 bytes;
//   of hidden activations: 2 q, 2 q + 1, and the same plus 8, 16 and 24, since that is where the
//     products of one layer lie in a warp when it goes on with the next.
// Tiles come in the order in which the kernel multiplies with them, so it reads one stream:
//   gain_v, gain_k (only a wide policy has them): for every 128 outputs, for every 32 inputs, a
//     stage of 16 tiles;
//   input of v, of k, of the position features; hidden: for every 32 inputs, all outputs.
// A narrow policy's 8 tiles of outputs follow each other. Two warps share the outputs of a wide
// one, so each of its stages has 8 tiles for the one, outputs below 128, and 8 for the other.
// Everything is padded with zeros: inputs to whole tiles, outputs to `hidden`, the stream to whole
// stages.
#ifndef KVP_HOST_FRAGMENT_LAYOUT_H
#define KVP_HOST_FRAGMENT_LAYOUT_H

#include <cstdint>

#include "kvp/kvp.h"

namespace kvp {

constexpr int32_t kTileInputs = 32;
constexpr int32_t kTileOutputs = 8;
constexpr int32_t kTileBytes = kTileInputs * kTileOutputs * 2;
constexpr int32_t kStageTiles = 16;  // what the kernel copies at a time
constexpr int32_t kStageBytes = kStageTiles * kTileBytes;
constexpr int32_t kGainOutputs = kStageTiles * kTileOutputs;

// Padded widths of the hidden layers that kernels exist for. A narrow policy has all of its weights
// in shared memory, so it must fit there, and it has no gains; a wide one streams its weights.
constexpr int32_t kNarrow = 64;
constexpr int32_t kWide = 256;
constexpr int32_t kMaxNarrowStages = 10;
constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxPositionDim = 256;

// Vectors of `hidden` floats each, at the start of a block.
enum FragmentVector : int32_t {
  kInputBias,
  kInputGainK,
  kInputGainV,
  kNorm1Weight,
  kNorm1Bias,
  kHiddenBias,
  kNorm2Weight,
  kNorm2Bias,
  kOutputWeight,
  kFragmentVectors
};

struct FragmentLayout {
  int32_t hidden;                        // padded
  int32_t blocks_k, blocks_v, blocks_p;  // of 32 inputs
  int32_t gain_groups_k, gain_groups_v;  // of 128 outputs; 0 without gains
  // In floats from the start of a block.
  int32_t gain_k_bias, gain_v_bias;
  int32_t gain_k_offset, gain_v_offset, output_bias;
  int32_t vector_floats;  // a multiple of 4

  int32_t stages;
  int64_t block_bytes;         // a multiple of 16
  int64_t position_row_bytes;  // of the 16-bit table of position features
};

// Throws Error if no kernel exists for the shape.
FragmentLayout fragment_layout(const kvp_policy_shape& shape);

}  // namespace kvp

#endif  // KVP_HOST_FRAGMENT_LAYOUT_H
