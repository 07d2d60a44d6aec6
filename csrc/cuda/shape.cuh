// How a block's warps share 128 entries and the outputs of a layer.
//   narrow: each warp takes 16 entries and all 64 outputs.
//   wide: each warp takes 32 entries and 128 of 256 outputs; two warps, a pair, share entries. A
//     weight read from shared memory then serves 32 entries, which halves what bounds this kernel.
#ifndef KVP_CUDA_SHAPE_CUH
#define KVP_CUDA_SHAPE_CUH

#include "cuda/params.h"

namespace kvp::cuda {

template <int kHidden>
struct Shape {
  static constexpr bool kIsWide = kHidden == kWide;
  static constexpr int kSharers = kIsWide ? 2 : 1;    // warps that share entries
  static constexpr int kRowTiles = kIsWide ? 2 : 1;   // of 16 entries each, per warp
  static constexpr int kLaneEntries = 2 * kRowTiles;  // lane 4 g + q: g, g + 8, ...
  static constexpr int kWarpEntries = 16 * kRowTiles;
  static constexpr int kTiles = kHidden / kTileOutputs / kSharers;  // of outputs, per warp
  static_assert(kWarps / kSharers * kWarpEntries == kTileEntries);
};

#if defined(__CUDA_ARCH__)
constexpr int kRingStages = ring_stages(__CUDA_ARCH__ / 10);
#elif defined(KVP_SIMT_ARCHITECTURE)
constexpr int kRingStages = ring_stages(KVP_SIMT_ARCHITECTURE);
#else  // nvcc's pass over host code, which runs no kernel
constexpr int kRingStages = ring_stages(80);
#endif

}  // namespace kvp::cuda

#endif  // KVP_CUDA_SHAPE_CUH
