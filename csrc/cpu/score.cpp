// Scores entries with a folded policy; see kvp.h for its formula, whose steps follow in order.
//
// A tile of entries passes through the whole policy while its activations stay in L2; each matrix
// is read once per tile, panel by panel from L1. The floor is the multiply-adds of the matrices:
// the rest of the work is linear in the widths and happens on rows that are still in L1.
//
// An entry is a row of every matrix here, and no operation mixes rows, so an entry that is not
// finite disturbs no other.
#include "cpu/score.h"

#include "cpu/gemm.h"

namespace kvp::cpu {
namespace {

using V = Vec<kLanes>;

// Register blocks of rows x 16 kPanels outputs: as many accumulators as leave room for one row of
// weights and one activation.
#if defined(__aarch64__)
constexpr int kRows = 4, kPanels = 1;  // 16 of 32 registers; with 6 rows clang spills
#else
constexpr int kRows = kLanes == 16 ? 14 : kLanes == 8 ? 6 : 3;  // 28 of 32; 12 of 16; 12 of 16
constexpr int kPanels = kLanes == 16 ? 2 : 1;
#endif
static_assert(kPanel == kPanelWidth && kPanel % kLanes == 0 && kTileEntries % kRows == 0);

void matrix(Rows<const float> a, int64_t rows, const float* weights, int64_t inputs,
            int64_t outputs_padded, Rows<float> c) {
  multiply<V, kRows, kPanels>(a, rows, weights, inputs, outputs_padded, c);
}

// ---- the inputs [k; v; p] ----------------------------------------------------------------------

template <class Element>
void widen(const Element* from, int64_t channels, float* to) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) V::load(from + c).store(to + c);
  for (; c < channels; ++c) to[c] = load_element(from + c);
}

KVP_INLINE int64_t slot_of(const ScoreTile& tile, int64_t i) {
  return tile.slots != nullptr ? tile.slots[i] : tile.first_slot + i;
}

template <class Element>
void gather(const ScoreTile& tile, const void* cache, int64_t stride, int64_t channels,
            Rows<float> to) {
  for (int64_t i = 0; i < tile.count; ++i) {
    widen(static_cast<const Element*>(cache) + slot_of(tile, i) * stride, channels, to.row(i));
  }
}

void gather(const ScoreTile& tile, const void* cache, int64_t stride, int64_t channels,
            Rows<float> to) {
  switch (tile.dtype) {
    case KVP_FLOAT16:
      return gather<Float16>(tile, cache, stride, channels, to);
    case KVP_BFLOAT16:
      return gather<BFloat16>(tile, cache, stride, channels, to);
    default:
      return gather<float>(tile, cache, stride, channels, to);
  }
}

// Asks for a row of the tile after this one. Only the loads of a gather wait for memory, so what
// they need is fetched while this tile computes. A prefetch past the end of the cache is ignored.
KVP_INLINE void prefetch_next(const ScoreTile& tile, const void* cache, int64_t stride,
                              int64_t channels, int64_t i) {
  if (tile.slots != nullptr) return;
  const int64_t bytes = tile.dtype == KVP_FLOAT32 ? 4 : 2;
  const auto row = reinterpret_cast<uintptr_t>(cache) +
                   static_cast<uintptr_t>((tile.first_slot + kTileEntries + i) * stride * bytes);
  for (uintptr_t at = 0; at < static_cast<uintptr_t>(channels * bytes); at += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(row + at), 0, 2);
  }
}

int64_t position_of(const ScoreTile& tile, int64_t slot) {
  if (tile.pos_dtype == KVP_INT64) {
    int64_t pos;
    std::memcpy(&pos, static_cast<const int64_t*>(tile.pos) + slot * tile.pos_stride, sizeof pos);
    return pos;
  }
  int32_t pos;
  std::memcpy(&pos, static_cast<const int32_t*>(tile.pos) + slot * tile.pos_stride, sizeof pos);
  return pos;
}

void gather_positions(const ScoreTile& tile, Rows<float> to) {
  const int64_t features = tile.shape->position_dim;
  if (features == 0) return;
  const int64_t last = tile.shape->position_rows - 1;
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t pos = position_of(tile, slot_of(tile, i));
    const int64_t row = pos < 0 ? 0 : pos > last ? last : pos;
    widen(tile.positions + row * features, features, to.row(i));
  }
}

// ---- gains -------------------------------------------------------------------------------------

// Sum over a row of the squares of y(j), the row's vector at j; padded lanes must be 0.
template <class Row>
KVP_INLINE float sum_of_squares(int64_t width_padded, Row y) {
  constexpr int kChains = kPanel / kLanes;  // of dependent additions
  V squares[kChains];
  for (V& s : squares) s = V::zero();
  for (int64_t j = 0; j < width_padded; j += kPanel) {
    for (int i = 0; i < kChains; ++i) {
      const V x = y(j + i * kLanes);
      squares[i] = fma(x, x, squares[i]);
    }
  }
  V total = squares[0];
  for (int i = 1; i < kChains; ++i) total = total + squares[i];
  return sum(total);
}

// Scales each row of x by gain = 1 / sqrt(|G x + g|^2 + c), and keeps the gains.
void apply_gains(Rows<float> x, int64_t rows, int64_t channels, const float* weight,
                 const float* bias, float offset, Rows<float> product, float* gains) {
  const int64_t padded = (channels + kPanel - 1) / kPanel * kPanel;
  matrix({x.data, x.stride}, rows, weight, channels, padded, product);
  for (int64_t i = 0; i < rows; ++i) {
    const float squares = sum_of_squares(padded, [&](int64_t j) KVP_INLINE_LAMBDA {
      return V::load(product.row(i) + j) + V::load(bias + j);
    });
    const float gain = 1.0f / __builtin_sqrtf(squares + offset);
    float* row = x.row(i);
    for (int64_t c = 0; c < channels; ++c) row[c] *= gain;
    gains[i] = gain;
  }
}

// ---- hidden layers -----------------------------------------------------------------------------

struct Norm {
  const float* weight;  // nullptr: no norm
  const float* bias;
  float eps;
  float width;
};

// Calls consume(i, h) for every row i of z, where h(j) is the vector at j of silu(norm(z + bias)),
// and bias(i, j) that of the bias. z is overwritten.
template <class Bias, class Consume>
KVP_INLINE void activate(Rows<float> z, int64_t rows, int64_t width_padded, const Norm& norm,
                         Bias bias, Consume consume) {
  if (norm.weight == nullptr) {
    for (int64_t i = 0; i < rows; ++i) {
      consume(
          i, [&](int64_t j) KVP_INLINE_LAMBDA { return silu(V::load(z.row(i) + j) + bias(i, j)); });
    }
    return;
  }
  // All rows' scales first: each ends a chain of slow operations that the next row's can overlap.
  float scales[kTileEntries];
  for (int64_t i = 0; i < rows; ++i) {
    const float squares = sum_of_squares(width_padded, [&](int64_t j) KVP_INLINE_LAMBDA {
      const V biased = V::load(z.row(i) + j) + bias(i, j);
      biased.store(z.row(i) + j);
      return biased;
    });
    scales[i] = 1.0f / __builtin_sqrtf(squares / norm.width + norm.eps);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const V scale = V::broadcast(scales[i]);
    consume(i, [&](int64_t j) KVP_INLINE_LAMBDA {
      const V unit = V::load(z.row(i) + j) * scale;
      return silu(fma(unit, V::load(norm.weight + j), V::load(norm.bias + j)));
    });
  }
}

// ---- one tile ----------------------------------------------------------------------------------

void score(const ScoreTile& tile, const ScorePlan& plan, void* scratch) {
  const kvp_policy_shape& shape = *tile.shape;
  const PackedLayout& at = plan.weights;
  const float* const w = tile.weights;
  const bool gains = (shape.flags & KVP_POLICY_GAINS) != 0;
  const bool norms = (shape.flags & KVP_POLICY_NORMS) != 0;
  const int64_t rows = tile.count;
  const int64_t hidden = plan.hidden_padded;

  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(scratch) + 63) / 64 * 64;
  const Rows<float> x = {reinterpret_cast<float*>(aligned), plan.input_stride};
  const Rows<float> h = {x.row(kTileEntries), plan.hidden_stride};

  // [k; v; p]
  const Rows<float> x_k = x;
  const Rows<float> x_v = {x_k.data + shape.head_dim_k, x.stride};
  const Rows<float> x_p = {x_v.data + shape.head_dim_v, x.stride};
  gather(tile, tile.k, tile.k_stride, shape.head_dim_k, x_k);
  gather(tile, tile.v, tile.v_stride, shape.head_dim_v, x_v);
  gather_positions(tile, x_p);

  // gain_k, gain_v; h serves as scratch
  float gain_k[kTileEntries], gain_v[kTileEntries];
  if (gains) {
    apply_gains(x_k, rows, shape.head_dim_k, w + at.gain_k_weight, w + at.gain_k_bias,
                w[at.gain_k_offset], h, gain_k);
    apply_gains(x_v, rows, shape.head_dim_v, w + at.gain_v_weight, w + at.gain_v_bias,
                w[at.gain_v_offset], h, gain_v);
  }

  // z1 = W1 [gain_k k; gain_v v; p] + gain_k bk + gain_v bv + b1, h1 = silu(norm1(z1))
  matrix({x.data, x.stride}, rows, w + at.input_weight, plan.inputs, hidden, h);
  const float width = static_cast<float>(shape.hidden);
  const Norm norm1 = {norms ? w + at.norm1_weight : nullptr, w + at.norm1_bias, shape.norm_eps,
                      width};
  const auto b1 = [&](int64_t, int64_t j)
                      KVP_INLINE_LAMBDA { return V::load(w + at.input_bias + j); };
  const auto b1_and_gains = [&](int64_t i, int64_t j) KVP_INLINE_LAMBDA {
    const V bk = V::load(w + at.input_gain_k + j), bv = V::load(w + at.input_gain_v + j);
    return fma(V::broadcast(gain_v[i]), bv, fma(V::broadcast(gain_k[i]), bk, b1(i, j)));
  };
  const auto store = [&](int64_t i, auto h1) KVP_INLINE_LAMBDA {
    for (int64_t j = 0; j < hidden; j += kLanes) h1(j).store(h.row(i) + j);
    prefetch_next(tile, tile.k, tile.k_stride, shape.head_dim_k, i);
    prefetch_next(tile, tile.v, tile.v_stride, shape.head_dim_v, i);
  };
  if (gains) {
    activate(h, rows, hidden, norm1, b1_and_gains, store);
  } else {
    activate(h, rows, hidden, norm1, b1, store);
  }

  // h2 = silu(norm2(W2 h1 + b2)), score = w3 . h2 + b3; z2 takes the place of the inputs
  matrix({h.data, h.stride}, rows, w + at.hidden_weight, shape.hidden, hidden, x);
  const Norm norm2 = {norms ? w + at.norm2_weight : nullptr, w + at.norm2_bias, shape.norm_eps,
                      width};
  const auto b2 = [&](int64_t, int64_t j)
                      KVP_INLINE_LAMBDA { return V::load(w + at.hidden_bias + j); };
  activate(x, rows, hidden, norm2, b2, [&](int64_t i, auto h2) KVP_INLINE_LAMBDA {
    V dot = V::zero();
    for (int64_t j = 0; j < hidden; j += kLanes) {
      dot = fma(h2(j), V::load(w + at.output_weight + j), dot);
    }
    tile.scores[slot_of(tile, i) * tile.scores_stride] = sum(dot) + w[at.output_bias];
  });
}

}  // namespace

namespace KVP_ISA {

void score_tile(const ScoreTile& tile, void* scratch);  // declared in isa.cpp, per namespace

void score_tile(const ScoreTile& tile, void* scratch) {
  const ScorePlan plan(*tile.shape);
  ScoreTile part = tile;
  for (int32_t done = 0; done < tile.count; done += kTileEntries) {
    part.first_slot = tile.first_slot + done;
    if (tile.slots != nullptr) part.slots = tile.slots + done;
    part.count = tile.count - done < kTileEntries ? tile.count - done : kTileEntries;
    score(part, plan, scratch);
  }
}

}  // namespace KVP_ISA
}  // namespace kvp::cpu
