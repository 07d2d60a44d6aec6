// C = A W^T for a tile of entries: A [rows, inputs] row-major, W [outputs, inputs] in panels of 16
// outputs (see packed_layout.h), C [rows, outputs padded to whole panels] row-major.
#ifndef KVP_CPU_GEMM_H
#define KVP_CPU_GEMM_H

#include "cpu/simd.h"

namespace kvp::cpu {
namespace {

constexpr int kPanel = 16;

// A row-major block of activations.
template <class T>
struct Rows {
  T* data;
  int64_t stride;

  KVP_INLINE T* row(int64_t i) const { return data + i * stride; }
};

// kRows x (kPanels * 16) outputs, held in registers while the inputs stream by. Not inlined, so
// that the compiler allocates registers to nothing else.
template <class V, int kRows, int kPanels>
[[gnu::noinline]] void multiply_block(Rows<const float> a, const float* panel, int64_t inputs,
                                      int64_t panel_stride, Rows<float> c) {
  constexpr int kPerPanel = kPanel / V::kWidth;
  constexpr int kVecs = kPanels * kPerPanel;
  // Rows are addressed from every seventh: the multiples of the stride then fit in registers.
  constexpr int kBase = 7;
  const float* upper = a.data;
  const float* lower = kRows > kBase ? a.row(kBase) : nullptr;

  V sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) sum[i][j] = V::zero();
  }
  const auto multiply_input = [&](int64_t k) KVP_INLINE_LAMBDA {
    V w[kVecs];
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) {
      w[j] = V::load(panel + j / kPerPanel * panel_stride + k * kPanel + j % kPerPanel * V::kWidth);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const float* row = i < kBase ? upper + i * a.stride : lower + (i - kBase) * a.stride;
      const V x = V::broadcast(row[k]);
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) sum[i][j] = fma(x, w[j], sum[i][j]);
    }
  };
  const auto advance = [&](int64_t k) {
    panel += k * kPanel;
    upper += k;
    if (kRows > kBase) lower += k;
  };
  // Measured: two inputs a turn run at 95% of the peak, one or four at 85 to 90%.
  for (; inputs >= 2; inputs -= 2) {
    multiply_input(0);
    multiply_input(1);
    advance(2);
  }
  if (inputs > 0) multiply_input(0);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) sum[i][j].store(c.row(i) + j * V::kWidth);
  }
}

// The block of a run-time number of rows, 1 to kRows.
template <class V, int kRows, int kPanels>
KVP_INLINE void multiply_rows(int64_t rows, Rows<const float> a, const float* panel, int64_t inputs,
                              int64_t panel_stride, Rows<float> c) {
  if (rows >= kRows) {
    multiply_block<V, kRows, kPanels>(a, panel, inputs, panel_stride, c);
  } else if constexpr (kRows > 1) {
    multiply_rows<V, kRows - 1, kPanels>(rows, a, panel, inputs, panel_stride, c);
  }
}

// Inputs at the start of a panel, in whole panel widths, whose weights are all zero. The gain
// matrices are upper triangular, so that their later panels skip most of their inputs.
KVP_INLINE int64_t unused_inputs(const float* panel, int64_t inputs) {
  for (int64_t k = 0; k + kPanel <= inputs; k += kPanel) {
    uint32_t any = 0;
    for (int64_t i = k * kPanel; i < (k + kPanel) * kPanel; ++i) any |= bits_of(panel[i]);
    if (any != 0) return k;
  }
  return inputs / kPanel * kPanel;
}

// One group of panels against all rows: the weights come from L1 while the activations stream.
template <class V, int kRows, int kPanels>
KVP_INLINE void multiply_panels(Rows<const float> a, int64_t rows, const float* panel,
                                int64_t inputs, Rows<float> c) {
  const int64_t panel_stride = inputs * kPanel;
  int64_t unused = inputs;
  for (int j = 0; j < kPanels; ++j) {
    const int64_t n = unused_inputs(panel + j * panel_stride, inputs);
    unused = n < unused ? n : unused;
  }
  for (int64_t i = 0; i < rows; i += kRows) {
    multiply_rows<V, kRows, kPanels>(rows - i, {a.row(i) + unused, a.stride},
                                     panel + unused * kPanel, inputs - unused, panel_stride,
                                     {c.row(i), c.stride});
  }
}

template <class V, int kRows, int kPanels>
void multiply(Rows<const float> a, int64_t rows, const float* weights, int64_t inputs,
              int64_t outputs_padded, Rows<float> c) {
  int64_t j = 0;
  for (; j + kPanels * kPanel <= outputs_padded; j += kPanels * kPanel) {
    multiply_panels<V, kRows, kPanels>(a, rows, weights + j * inputs, inputs,
                                       {c.data + j, c.stride});
  }
  for (; j < outputs_padded; j += kPanel) {
    multiply_panels<V, kRows, 1>(a, rows, weights + j * inputs, inputs, {c.data + j, c.stride});
  }
}

}  // namespace
}  // namespace kvp::cpu

#endif  // KVP_CPU_GEMM_H
