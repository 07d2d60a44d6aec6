// What a thread does alone: bits, floats, loads. The functions that are approximate on the device
// are as exact here as the host's library.
#ifndef KVP_SIMT_CUDA_THREAD_FUNCTIONS_H
#define KVP_SIMT_CUDA_THREAD_FUNCTIONS_H

#include <bit>
#include <cmath>
#include <cstdint>

constexpr int __popc(unsigned x) { return std::popcount(x); }
constexpr int __popcll(unsigned long long x) { return std::popcount(x); }
constexpr int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
constexpr int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }

constexpr unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}

constexpr unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
constexpr float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
constexpr int __float_as_int(float x) { return std::bit_cast<int>(x); }
constexpr float __int_as_float(int x) { return std::bit_cast<float>(x); }

// noexcept, since some C libraries declare functions of these names so.
inline float __expf(float x) noexcept { return expf(x); }
inline float rsqrtf(float x) noexcept { return 1.0f / sqrtf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }

template <class T>
T __ldg(const T* address) {
  return *address;
}

constexpr int min(int a, int b) { return b < a ? b : a; }
constexpr unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
constexpr long min(long a, long b) { return b < a ? b : a; }
constexpr unsigned long min(unsigned long a, unsigned long b) { return b < a ? b : a; }
constexpr long long min(long long a, long long b) { return b < a ? b : a; }
constexpr unsigned long long min(unsigned long long a, unsigned long long b) {
  return b < a ? b : a;
}

constexpr int max(int a, int b) { return a < b ? b : a; }
constexpr unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
constexpr long max(long a, long b) { return a < b ? b : a; }
constexpr unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
constexpr long long max(long long a, long long b) { return a < b ? b : a; }
constexpr unsigned long long max(unsigned long long a, unsigned long long b) {
  return a < b ? b : a;
}

#endif  // KVP_SIMT_CUDA_THREAD_FUNCTIONS_H
