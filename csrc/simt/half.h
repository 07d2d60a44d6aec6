// 16-bit floats and their fp32 values. The way down rounds to nearest even and makes every NaN the
// canonical one, as cvt.rn does.
#ifndef KVP_SIMT_HALF_H
#define KVP_SIMT_HALF_H

#include <bit>
#include <cstdint>

namespace kvp::simt {

constexpr uint16_t kCanonicalNan = 0x7FFF;

// The widening functions also take vectors of GCC, all lanes at once. They are always inlined: how
// a vector is passed differs between instruction sets.
template <class Float, class Bits>
[[gnu::always_inline]] inline Float bf16_to_float(const Bits& half) {
  return std::bit_cast<Float>(half << 16);
}

template <class Float, class Bits>
[[gnu::always_inline]] inline Float fp16_to_float(const Bits& half) {
  const Bits magnitude = half & 0x7FFFu;
  const Bits normal = (magnitude << 13) + (112u << 23);  // the exponent's bias: 15, then 127
  const Bits not_finite = magnitude << 13 | 0x7F800000u;
  // A subnormal counts units of 2^-24, which is what the last bit of a float near 0.5 is worth.
  const Bits subnormal = std::bit_cast<Bits>(std::bit_cast<Float>(magnitude | 0x3F000000u) - 0.5f);
  const Bits finite = magnitude < 0x400u ? subnormal : normal;
  const Bits bits = magnitude < 0x7C00u ? finite : not_finite;
  return std::bit_cast<Float>(bits | (half & 0x8000u) << 16);
}

// bits / 2^shift, rounded to nearest even; 0 < shift < 32.
constexpr uint32_t shift_rounded(uint32_t bits, int shift) {
  const uint32_t odd = bits >> shift & 1;
  return (bits + (1u << (shift - 1)) - 1 + odd) >> shift;
}

constexpr uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kCanonicalNan;
  return static_cast<uint16_t>(shift_rounded(bits, 16));
}

constexpr uint16_t float_to_fp16(float x) {
  constexpr uint32_t kInfinity = 0x7C00, kSmallestNormal = 113u << 23;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return kCanonicalNan;
  uint32_t rounded = 0;
  if (magnitude >= kSmallestNormal) {
    // Rounding carries into the exponent where it must; what leaves the range is infinite.
    rounded = shift_rounded(magnitude - (112u << 23), 13);
    if (rounded > kInfinity) rounded = kInfinity;
  } else if (const int shift = 126 - static_cast<int>(magnitude >> 23); shift < 32) {
    // Units of 2^-24.
    rounded = shift_rounded((magnitude & 0x7FFFFFu) | 0x800000u, shift);
  }
  return static_cast<uint16_t>(sign | rounded);
}

}  // namespace kvp::simt

#endif  // KVP_SIMT_HALF_H
