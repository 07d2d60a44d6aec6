// Vec<N>: N floats in one register, and the few operations that scoring needs of them.
//
// Vec<8> is AVX2 and Vec<16> is AVX-512 where the compiler may emit them; any other width, or any
// width elsewhere, is the compiler's vector extension. All of it has internal linkage and is
// inlined, because each instruction set compiles its own copy (see score.h).
#ifndef KVP_CPU_SIMD_H
#define KVP_CPU_SIMD_H

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
// gcc 12 warns about the don't-care operands of its own AVX-512 intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

// Vectors wider than the machine's are passed to inlined functions only, so their ABI is moot.
#pragma GCC diagnostic ignored "-Wpsabi"

#define KVP_INLINE [[gnu::always_inline]] inline
#define KVP_INLINE_LAMBDA __attribute__((always_inline))

namespace kvp::cpu {
namespace {

// Lanes of a register, or the width that a test asks for to run the blocking of another machine.
#if defined(KVP_VECTOR_LANES)
constexpr int kLanes = KVP_VECTOR_LANES;
#elif defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Elements of a cache as they are stored.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

KVP_INLINE float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

KVP_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

KVP_INLINE float load_element(const float* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

KVP_INLINE float load_element(const BFloat16* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return float_from_bits(uint32_t{bits} << 16);
}

KVP_INLINE float load_element(const Float16* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  constexpr uint32_t kExponent = 0x1fu << 23;  // fp16's exponent, where fp32 keeps its own
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
  const uint32_t infinity = (magnitude & kExponent) == kExponent ? kRebias : 0;
  // A subnormal counts units of 2^-24 in its mantissa: put it under 2^-14 and take that away.
  const float subnormal = float_from_bits(magnitude + kRebias + (1u << 23)) - 0x1p-14f;
  const float normal = float_from_bits(magnitude + kRebias + infinity);
  const float value = (magnitude & kExponent) == 0 ? subnormal : normal;
  return float_from_bits(bits_of(value) | sign);
}

template <int N>
struct Vec {
  static constexpr int kWidth = N;
  typedef float Lanes __attribute__((vector_size(4 * N)));
  typedef uint32_t Bits __attribute__((vector_size(4 * N)));
  Lanes lanes;

  KVP_INLINE static Vec zero() { return {Lanes{}}; }
  KVP_INLINE static Vec broadcast(float x) { return {x - Lanes{}}; }  // x - 0 is x, even for -0
  KVP_INLINE static Vec load(const float* p) {
    Vec x;
    std::memcpy(&x.lanes, p, sizeof x.lanes);
    return x;
  }
  template <class Element>
  KVP_INLINE static Vec load(const Element* p) {
    float x[N];
    for (int i = 0; i < N; ++i) x[i] = load_element(p + i);
    return load(x);
  }
  KVP_INLINE void store(float* p) const { std::memcpy(p, &lanes, sizeof lanes); }

  KVP_INLINE friend Vec operator+(Vec a, Vec b) { return {a.lanes + b.lanes}; }
  KVP_INLINE friend Vec operator-(Vec a, Vec b) { return {a.lanes - b.lanes}; }
  KVP_INLINE friend Vec operator*(Vec a, Vec b) { return {a.lanes * b.lanes}; }
  KVP_INLINE friend Vec operator/(Vec a, Vec b) { return {a.lanes / b.lanes}; }
  // a b + c; fused where the machine does that.
  KVP_INLINE friend Vec fma(Vec a, Vec b, Vec c) { return {a.lanes * b.lanes + c.lanes}; }
  // x within the bounds; a NaN stays one.
  KVP_INLINE friend Vec clamp(Vec x, Vec low, Vec high) {
    x.lanes = x.lanes > high.lanes ? high.lanes : x.lanes;
    x.lanes = x.lanes < low.lanes ? low.lanes : x.lanes;
    return x;
  }
  // Moves the bits of the low mantissa to where the exponent is.
  KVP_INLINE friend Vec exponent_from_mantissa(Vec x) { return {(Lanes)((Bits)x.lanes << 23)}; }
  KVP_INLINE friend float sum(Vec x) {
    float lane[N], total = 0;
    x.store(lane);
    for (int i = 0; i < N; ++i) total += lane[i];
    return total;
  }
};

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
template <>
struct Vec<8> {
  static constexpr int kWidth = 8;
  __m256 lanes;

  KVP_INLINE static Vec zero() { return {_mm256_setzero_ps()}; }
  KVP_INLINE static Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
  KVP_INLINE static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  KVP_INLINE static Vec load(const Float16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  KVP_INLINE static Vec load(const BFloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  KVP_INLINE void store(float* p) const { _mm256_storeu_ps(p, lanes); }

  KVP_INLINE friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  // min and max return their second operand when either is NaN.
  KVP_INLINE friend Vec clamp(Vec x, Vec low, Vec high) {
    return {_mm256_max_ps(low.lanes, _mm256_min_ps(high.lanes, x.lanes))};
  }
  KVP_INLINE friend Vec exponent_from_mantissa(Vec x) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.lanes), 23))};
  }
  KVP_INLINE friend float sum(Vec x) {
    const __m128 four =
        _mm_add_ps(_mm256_castps256_ps128(x.lanes), _mm256_extractf128_ps(x.lanes, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};
#endif

#if defined(__AVX512F__)
template <>
struct Vec<16> {
  static constexpr int kWidth = 16;
  __m512 lanes;

  KVP_INLINE static Vec zero() { return {_mm512_setzero_ps()}; }
  KVP_INLINE static Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
  KVP_INLINE static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  KVP_INLINE static Vec load(const Float16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  KVP_INLINE static Vec load(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  KVP_INLINE void store(float* p) const { _mm512_storeu_ps(p, lanes); }

  KVP_INLINE friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
  KVP_INLINE friend Vec fma(Vec a, Vec b, Vec c) {
    return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  // min and max return their second operand when either is NaN.
  KVP_INLINE friend Vec clamp(Vec x, Vec low, Vec high) {
    return {_mm512_max_ps(low.lanes, _mm512_min_ps(high.lanes, x.lanes))};
  }
  KVP_INLINE friend Vec exponent_from_mantissa(Vec x) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x.lanes), 23))};
  }
  KVP_INLINE friend float sum(Vec x) { return _mm512_reduce_add_ps(x.lanes); }
};
#endif

// 2^x as significand * scale, with a relative error below 2.5e-7: 0 below -126, inf from 128 on,
// NaN for NaN. The product is left to the caller, who may fuse it.
template <class V>
struct Power {
  V significand;
  V scale;
};

template <class V>
KVP_INLINE Power<V> exp2(V x) {
  // With x = n + f, |f| <= 1/2: 2^x = 2^(n-1) * 2 2^f. Factoring out the 2 lets n reach 128, so
  // that 2^x overflows where it should. Adding 1.5 * 2^23 rounds to an integer and leaves it in
  // the low bits of the mantissa, here as n - 1 with the exponent's bias of 127.
  const V round = V::broadcast(0x1.8p23f + 126.0f);
  x = clamp(x, V::broadcast(-126.0f), V::broadcast(128.0f));
  const V biased = x + round;
  const V f = x - (biased - round);
  // 2 2^f: minimax in relative error, 9.3e-8, among the polynomials that are exact at 0.
  V y = V::broadcast(0x1.5bb99cp-9f);
  y = fma(y, f, V::broadcast(0x1.3ceafcp-6f));
  y = fma(y, f, V::broadcast(0x1.c6b758p-4f));
  y = fma(y, f, V::broadcast(0x1.ebf9bap-2f));
  y = fma(y, f, V::broadcast(0x1.62e42ap+0f));
  y = fma(y, f, V::broadcast(2.0f));
  return {y, exponent_from_mantissa(biased)};
}

// x / (1 + e^-x). The rounding of x log2(e) makes the relative error grow with |x|, where e^-x
// no longer matters or the result is next to 0.
template <class V>
KVP_INLINE V silu(V x) {
  const Power<V> e = exp2(x * V::broadcast(-0x1.715476p+0f));
  return x / fma(e.significand, e.scale, V::broadcast(1.0f));
}

}  // namespace
}  // namespace kvp::cpu

#endif  // KVP_CPU_SIMD_H
