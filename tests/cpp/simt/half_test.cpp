// 16-bit floats: every value widened exactly, and rounding to nearest even at every boundary
// between two of them.
#include "cuda/ptx/half.cuh"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "testing.h"

namespace {

using kvp::cuda::Bf16;
using kvp::cuda::Fp16;
using namespace simt_test;

template <class Half>
struct Format;

template <>
struct Format<Bf16> {
  static constexpr const char* kName = "bf16";
  static constexpr int kFractionBits = 7, kBias = 127, kInfinity = 0x7F80;
};

template <>
struct Format<Fp16> {
  static constexpr const char* kName = "fp16";
  static constexpr int kFractionBits = 10, kBias = 15, kInfinity = 0x7C00;
};

// By the definition of the formats; what would be infinite counts as the next finite value, which
// is what rounding compares with.
template <class Half>
double value_of(int bits) {
  using F = Format<Half>;
  const int magnitude = bits & 0x7FFF;
  const int exponent = magnitude >> F::kFractionBits;
  const int fraction = magnitude & ((1 << F::kFractionBits) - 1);
  const double significand = std::ldexp(fraction, -F::kFractionBits) + (exponent > 0 ? 1 : 0);
  const double value = std::ldexp(significand, (exponent > 0 ? exponent : 1) - F::kBias);
  return bits & 0x8000 ? -value : value;
}

template <class Half>
void test_widening() {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto word = static_cast<uint32_t>(bits);
    const float low = kvp::cuda::unpack_low<Half>(word | 0xABCD0000u);
    const float high = kvp::cuda::unpack_high<Half>(word << 16 | 0xABCDu);
    const int magnitude = bits & 0x7FFF;
    bool right;
    if (magnitude > Format<Half>::kInfinity) {
      right = std::isnan(low) && std::isnan(high);
    } else {
      const double expected = magnitude < Format<Half>::kInfinity
                                  ? value_of<Half>(bits)
                                  : std::copysign(INFINITY, bits & 0x8000 ? -1.0 : 1.0);
      right = low == expected && high == expected && std::signbit(low) == (bits >= 0x8000) &&
              std::signbit(high) == (bits >= 0x8000);
    }
    expect(right, "%s 0x%04x widens to %g and %g", Format<Half>::kName, bits, low, high);
  }
}

template <class Half>
void expect_rounds(float x, int expected) {
  const uint32_t packed = kvp::cuda::pack<Half>(x, -x);
  expect(packed == static_cast<uint32_t>(expected | (expected ^ 0x8000) << 16),
         "%s of %.10g (0x%08x) is 0x%08x, expected 0x%04x below its negative", Format<Half>::kName,
         x, std::bit_cast<uint32_t>(x), packed, expected);
}

// At each value, just below, at and just above the middle to the next one. The middle is a float:
// it has one more bit.
template <class Half>
void test_rounding() {
  for (int bits = 0; bits < Format<Half>::kInfinity; ++bits) {
    const auto value = static_cast<float>(value_of<Half>(bits));
    const auto middle = static_cast<float>((value_of<Half>(bits) + value_of<Half>(bits + 1)) / 2);
    expect_rounds<Half>(value, bits);
    expect_rounds<Half>(std::nextafter(middle, 0.0f), bits);
    expect_rounds<Half>(middle, bits % 2 == 0 ? bits : bits + 1);
    expect_rounds<Half>(std::nextafter(middle, INFINITY), bits + 1);
  }
  expect_rounds<Half>(INFINITY, Format<Half>::kInfinity);
  expect_rounds<Half>(std::numeric_limits<float>::max(), Format<Half>::kInfinity);
}

template <class Half>
void test_nan() {
  for (const uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu, 0x7FFFFFFFu}) {
    const float nan = std::bit_cast<float>(bits);
    const uint32_t packed = kvp::cuda::pack<Half>(nan, 1.0f);
    expect((packed & 0xFFFF) == 0x7FFF, "%s of NaN 0x%08x is 0x%08x", Format<Half>::kName, bits,
           packed);
  }
}

template <class Half>
void test_format() {
  test_widening<Half>();
  test_rounding<Half>();
  test_nan<Half>();
}

}  // namespace

int main() {
  test_format<Bf16>();
  test_format<Fp16>();
  return failures == 0 ? 0 : 1;
}
