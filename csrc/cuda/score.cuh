// Scores entries with a folded policy on tensor cores; kvp.h has its formula.
//
// A block takes 128 entries through the whole policy; Shape says which warp computes what. All sums
// are fp32 and stay in registers. The products of the first hidden layer lie in the lanes where the
// left operand of the second is wanted, so going on costs a rounding to 16 bits: a narrow policy's
// activations never leave a warp's registers, a wide one's go through shared memory once, for the
// other warp of the pair. The gains scale sums, never operands: (W_v v) gain_v / gain_k + W_k k,
// and then all times gain_k.
//
// Floor: 2 FLOPs per weight and entry, and one read of K and V.
//
// An entry is a row of every operand and no operation mixes rows, so an entry that is not finite
// disturbs no other.
#ifndef KVP_CUDA_SCORE_CUH
#define KVP_CUDA_SCORE_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/entries.cuh"
#include "cuda/products.cuh"
#include "cuda/ptx/tanh.cuh"
#include "cuda/shape.cuh"
#include "cuda/weight_stream.cuh"

namespace kvp::cuda {

// Shared memory of a scoring block. What has a size known to the compiler comes first, so that its
// addresses are constants and hold no registers.
template <int kHidden>
struct ScoreMemory {
  Chunk* chunk;
  int32_t* slots;                // to score
  uint4* activations = nullptr;  // wide: left operands, [kTileEntries / 16][kWide / 16][kWarp]
  float* partials = nullptr;     // wide: [2][kTileEntries] sums of the warps of a pair
  float* gains = nullptr;        // wide: [2][kTileEntries] of values and of keys
  std::byte* work;               // weights: the ring of stages, or all
  float* vectors;

  __device__ ScoreMemory(const Params& p, SharedMemory& shared)
      : chunk(shared.take<Chunk>(1)), slots(shared.take<int32_t>(kMaxChunkSlots<kHidden>)) {
    if (Shape<kHidden>::kIsWide) {
      activations = shared.take<uint4>(kTileEntries / 16 * (kWide / 16) * kWarp);
      partials = shared.take<float>(2 * kTileEntries);
      gains = shared.take<float>(2 * kTileEntries);
    }
    work = shared.take<std::byte>(p.work_bytes);
    vectors = shared.take<float>(p.weights.layout.vector_floats);
  }
};

// Which of the warps that share entries this one is.
template <int kHidden>
__device__ __forceinline__ int32_t sharer() {
  return static_cast<int32_t>(threadIdx.x) / kWarp % Shape<kHidden>::kSharers;
}

// Index in the block's tile of this lane's first entry; its others follow 8 apart.
template <int kHidden>
__device__ __forceinline__ int32_t first_entry() {
  using S = Shape<kHidden>;
  return static_cast<int32_t>(threadIdx.x) / kWarp / S::kSharers * S::kWarpEntries +
         static_cast<int32_t>(threadIdx.x) % kWarp / 4;
}

// The sums over all outputs of an entry, of every lane's part: over the four lanes of an entry, and
// over the warps that share it.
template <int kHidden>
__device__ __forceinline__ void sum_entries(float (&sums)[Shape<kHidden>::kLaneEntries],
                                            const ScoreMemory<kHidden>& memory) {
  using S = Shape<kHidden>;
#pragma unroll
  for (int e = 0; e < S::kLaneEntries; ++e) {
    sums[e] += __shfl_xor_sync(kAllLanes, sums[e], 1);
    sums[e] += __shfl_xor_sync(kAllLanes, sums[e], 2);
  }
  if (!S::kIsWide) return;
  const int32_t first = first_entry<kHidden>();
  if (threadIdx.x % 4 == 0) {
#pragma unroll
    for (int e = 0; e < S::kLaneEntries; ++e) {
      memory.partials[sharer<kHidden>() * kTileEntries + first + 8 * e] = sums[e];
    }
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < S::kLaneEntries; ++e) {
    sums[e] = memory.partials[first + 8 * e] + memory.partials[kTileEntries + first + 8 * e];
  }
  __syncthreads();
}

// products += entries x weights, over all their channels. The loads of the next channels are under
// way while some are multiplied.
template <class Half, int kHidden, int kTiles>
__device__ __forceinline__ void multiply_entries(
    Products<Shape<kHidden>::kRowTiles, kTiles>& products,
    const EntryRows<Shape<kHidden>::kLaneEntries>& entries, WeightStream<kHidden>& weights) {
  using S = Shape<kHidden>;
  constexpr int kAhead = S::kIsWide ? 1 : 2;
  constexpr int kStep = WeightStream<kHidden>::kTiles;
  uint4 loaded[kAhead][S::kLaneEntries];
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
#pragma unroll
    for (int e = 0; e < S::kLaneEntries; ++e) loaded[a][e] = entries.template load<Half>(e, a);
  }
#pragma unroll 1
  for (int32_t block = 0; block < entries.blocks; ++block) {
    uint32_t operands[S::kRowTiles][2][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      const uint4 low = loaded[0][2 * m], high = loaded[0][2 * m + 1];
      const uint32_t parts[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
      for (int i = 0; i < 8; ++i) operands[m][i / 4][i % 4] = parts[i / 4][i % 4];
    }
#pragma unroll
    for (int e = 0; e < S::kLaneEntries; ++e) {
#pragma unroll
      for (int a = 0; a + 1 < kAhead; ++a) loaded[a][e] = loaded[a + 1][e];
      loaded[kAhead - 1][e] = entries.template load<Half>(e, block + kAhead);
    }
#pragma unroll
    for (int t = 0; t < kTiles; t += kStep) {
      multiply_tiles<Half, kStep>(products, operands, weights.next(), t);
    }
  }
}

// gain = 1 / sqrt(|G x + g|^2 + c), of the values and of the keys, into shared memory: they are
// needed now and then, while the products want all registers.
template <class Half, int kHidden>
__device__ __forceinline__ void find_gains(const LaneEntries<Shape<kHidden>::kLaneEntries>& entries,
                                           const FragmentLayout& at,
                                           const ScoreMemory<kHidden>& memory,
                                           WeightStream<kHidden>& weights) {
  using S = Shape<kHidden>;
  constexpr int kTiles = kStageTiles / S::kSharers;
#pragma unroll 1
  for (int input = kValue; input <= kKey; ++input) {
    const bool is_key = input == kKey;
    const float* bias = memory.vectors + (is_key ? at.gain_k_bias : at.gain_v_bias);
    const int32_t groups = is_key ? at.gain_groups_k : at.gain_groups_v;
    const auto rows = entries.of(static_cast<Input>(input));
    float squares[S::kLaneEntries] = {};
#pragma unroll 1
    for (int32_t group = 0; group < groups; ++group) {
      Products<S::kRowTiles, kTiles> products;
      products.clear();
      multiply_entries<Half, kHidden>(products, rows, weights);
      const LaneVector g(bias, group * kGainOutputs + sharer<kHidden>() * kTiles * kTileOutputs);
      products.for_each([&](float y, int e, int t, int which) {
        y += g(t, which);
        squares[e] = fmaf(y, y, squares[e]);
      });
    }
    sum_entries<kHidden>(squares, memory);
    const float offset = memory.vectors[is_key ? at.gain_k_offset : at.gain_v_offset];
    if (threadIdx.x % 4 == 0 && sharer<kHidden>() == 0) {
      float* gains = memory.gains + input * kTileEntries + first_entry<kHidden>();
#pragma unroll
      for (int e = 0; e < S::kLaneEntries; ++e) gains[8 * e] = rsqrtf(squares[e] + offset);
    }
  }
  __syncthreads();
}

// z = W1 [gain_k k; gain_v v; p] + gain_k bk + gain_v bv + b1
template <class Half, int kHidden>
__device__ __forceinline__ void input_layer(
    Products<Shape<kHidden>::kRowTiles, Shape<kHidden>::kTiles>& z,
    const LaneEntries<Shape<kHidden>::kLaneEntries>& entries, const Weights& policy,
    const ScoreMemory<kHidden>& memory, int32_t first_output, WeightStream<kHidden>& weights) {
  using S = Shape<kHidden>;
  const bool gained = S::kIsWide && policy.gains;
  if (gained) find_gains<Half, kHidden>(entries, policy.layout, memory, weights);
  const float* lane_gains = memory.gains + first_entry<kHidden>();
  const auto gain = [&](Input of, int e) { return lane_gains[of * kTileEntries + 8 * e]; };
  z.clear();
#pragma unroll 1
  for (int input = kValue; input < kInputs; ++input) {
    multiply_entries<Half, kHidden>(z, entries.of(static_cast<Input>(input)), weights);
    if (gained && input != kPosition) {
      float scale[S::kLaneEntries];
#pragma unroll
      for (int e = 0; e < S::kLaneEntries; ++e) {
        scale[e] = input == kKey ? gain(kKey, e) : __fdividef(gain(kValue, e), gain(kKey, e));
      }
      z.for_each([&](float& x, int e, int, int) { x *= scale[e]; });
    }
  }
  const auto vector = [&](FragmentVector which) {
    return LaneVector(memory.vectors + which * kHidden, first_output);
  };
  const LaneVector b1 = vector(kInputBias);
  z.for_each([&](float& x, int, int t, int which) { x += b1(t, which); });
  if (!gained) return;
  const LaneVector bk = vector(kInputGainK), bv = vector(kInputGainV);
  float gains[2][S::kLaneEntries];
#pragma unroll
  for (int e = 0; e < S::kLaneEntries; ++e) {
    gains[kValue][e] = gain(kValue, e);
    gains[kKey][e] = gain(kKey, e);
  }
  z.for_each([&](float& x, int e, int t, int which) {
    x = fmaf(gains[kKey][e], bk(t, which), fmaf(gains[kValue][e], bv(t, which), x));
  });
}

// x / (1 + exp(-x)), with half the special-function instructions of that form. The error of the
// tangent is below that of rounding the result to 16 bits.
__device__ __forceinline__ float silu(float x) {
  const float half = 0.5f * x;
  return fmaf(half, fast_tanh(half), half);
}

// silu(norm(z)) of a layer whose products have their biases. Without norms the weights are 1 and
// the biases 0.
template <int kHidden>
struct Activation {
  using S = Shape<kHidden>;
  LaneVector weight;
  LaneVector bias;
  float scale[S::kLaneEntries];  // 1 / sqrt(mean(z^2) + eps)

  __device__ __forceinline__ Activation(Products<S::kRowTiles, S::kTiles>& z, const Weights& policy,
                                        const ScoreMemory<kHidden>& memory, LaneVector norm_weight,
                                        LaneVector norm_bias)
      : weight(norm_weight), bias(norm_bias) {
#pragma unroll
    for (int e = 0; e < S::kLaneEntries; ++e) scale[e] = 1.0f;
    if (!policy.norms) return;
    float squares[S::kLaneEntries] = {};
    z.for_each([&](float x, int e, int, int) { squares[e] = fmaf(x, x, squares[e]); });
    sum_entries<kHidden>(squares, memory);
#pragma unroll
    for (int e = 0; e < S::kLaneEntries; ++e) {
      scale[e] = rsqrtf(fmaf(squares[e], policy.per_output, policy.norm_eps));
    }
  }

  __device__ __forceinline__ float operator()(float z, int e, int t, int which) const {
    return silu(fmaf(z * scale[e], weight(t, which), bias(t, which)));
  }
};

// The activations of outputs 16 k .. 16 k + 15 of this warp, as the left operand of row tile m.
template <class Half, int kHidden>
__device__ __forceinline__ uint4
operand_of(const Products<Shape<kHidden>::kRowTiles, Shape<kHidden>::kTiles>& z,
           const Activation<kHidden>& h, int m, int k) {
  uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = 2 * k + i / 2, e = 2 * m + i % 2;
    const float* x = &z.at[m][t][i % 2 * 2];
    packed[i] = pack<Half>(h(x[0], e, t, 0), h(x[1], e, t, 1));
  }
  return make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

// z2 = W2 h + b2, where h are the activations of z1.
template <class Half, int kHidden>
__device__ __forceinline__ void hidden_layer(
    Products<Shape<kHidden>::kRowTiles, Shape<kHidden>::kTiles>& z2,
    const Products<Shape<kHidden>::kRowTiles, Shape<kHidden>::kTiles>& z1,
    const Activation<kHidden>& h, LaneVector bias, const ScoreMemory<kHidden>& memory,
    WeightStream<kHidden>& weights) {
  using S = Shape<kHidden>;
  constexpr int kOwnSteps = S::kTiles / 2;  // of 16 outputs
  constexpr int kSteps = kHidden / 16;
  constexpr int kStep = WeightStream<kHidden>::kTiles;
  if constexpr (S::kIsWide) {
    const int32_t thread = opaque(static_cast<int32_t>(threadIdx.x));
    const int32_t lane = thread % kWarp;
    const int32_t pair = thread / kWarp / S::kSharers;
    uint4* of_pair = memory.activations + pair * S::kRowTiles * kSteps * kWarp + lane;
#pragma unroll
    for (int k = 0; k < kOwnSteps; ++k) {
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        of_pair[(m * kSteps + sharer<kHidden>() * kOwnSteps + k) * kWarp] =
            operand_of<Half, kHidden>(z1, h, m, k);
      }
    }
    z2.clear();
    // The barrier of the first stage shows each warp what the other stored.
#pragma unroll 1
    for (int k = 0; k < kSteps; k += 2) {
      const uint4* tiles = weights.next();
      uint32_t operands[S::kRowTiles][2][4];
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const uint4 stored = of_pair[(m * kSteps + k + step) * kWarp];
          const uint32_t parts[4] = {stored.x, stored.y, stored.z, stored.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) operands[m][step][i] = parts[i];
        }
      }
      multiply_tiles<Half, kStep>(z2, operands, tiles, 0);
#pragma unroll
      for (int t = kStep; t < S::kTiles; t += kStep) {
        multiply_tiles<Half, kStep>(z2, operands, weights.next(), t);
      }
    }
  } else {
    uint32_t operands[kSteps / 2][1][2][4];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const uint4 packed = operand_of<Half, kHidden>(z1, h, 0, k);
      const uint32_t parts[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) operands[k / 2][0][k % 2][i] = parts[i];
    }
    z2.clear();
#pragma unroll
    for (int block = 0; block < kSteps / 2; ++block) {
      multiply_tiles<Half, kStep>(z2, operands[block], weights.next(), 0);
    }
  }
  z2.for_each([&](float& x, int, int t, int which) { x += bias(t, which); });
}

// The scores of a lane's entries.
template <class Half, int kHidden>
__device__ __forceinline__ void score_entries(
    const LaneEntries<Shape<kHidden>::kLaneEntries>& entries, const Weights& policy,
    const ScoreMemory<kHidden>& memory, WeightStream<kHidden>& weights,
    float (&scores)[Shape<kHidden>::kLaneEntries]) {
  using S = Shape<kHidden>;
  const int32_t first_output = sharer<kHidden>() * S::kTiles * kTileOutputs;
  const auto vector = [&](FragmentVector which) {
    return LaneVector(memory.vectors + which * kHidden, first_output);
  };
  Products<S::kRowTiles, S::kTiles> z1, z2;
  input_layer<Half, kHidden>(z1, entries, policy, memory, first_output, weights);
  const Activation<kHidden> h1(z1, policy, memory, vector(kNorm1Weight), vector(kNorm1Bias));
  hidden_layer<Half, kHidden>(z2, z1, h1, vector(kHiddenBias), memory, weights);
  weights.rewind();

  const Activation<kHidden> h2(z2, policy, memory, vector(kNorm2Weight), vector(kNorm2Bias));
  const LaneVector w3 = vector(kOutputWeight);
#pragma unroll
  for (int e = 0; e < S::kLaneEntries; ++e) scores[e] = 0.0f;
  z2.for_each([&](float x, int e, int t, int which) {
    scores[e] = fmaf(h2(x, e, t, which), w3(t, which), scores[e]);
  });
  sum_entries<kHidden>(scores, memory);
  const float b3 = memory.vectors[opaque(policy.layout.output_bias)];
#pragma unroll
  for (int e = 0; e < S::kLaneEntries; ++e) scores[e] += b3;
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_SCORE_CUH
