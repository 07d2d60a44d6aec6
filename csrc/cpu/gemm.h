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
  for (int64_t k = 0; k < inputs; ++k) {
    V w[kVecs];
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) {
      w[j] = V::load(panel + j / kPerPanel * panel_stride + j % kPerPanel * V::kWidth);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const V x = V::broadcast(i < kBase ? upper[i * a.stride] : lower[(i - kBase) * a.stride]);
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) sum[i][j] = fma(x, w[j], sum[i][j]);
    }
    panel += kPanel;
    ++upper;
    if (kRows > kBase) ++lower;
  }
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

// Inputs that no output of the panel uses, counted from the first. The gain matrices are upper
// triangular, so their later panels skip most of theirs.
KVP_INLINE int64_t unused_inputs(const float* panel, int64_t inputs) {
  for (int64_t k = 0; k < inputs; ++k, panel += kPanel) {
    uint32_t bits[kPanel];
    std::memcpy(bits, panel, sizeof bits);
    uint32_t any = 0;
    for (uint32_t b : bits) any |= b;
    if (any != 0) return k;
  }
  return inputs;
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
