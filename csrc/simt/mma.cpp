// mma.sync.m16n8k16: the lane that comes last multiplies for its whole warp. The product of two
// 16-bit numbers is exact in fp32 and sums are taken in the order of k, so the result is the same
// with and without fused multiply-add.
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions only

#include "simt/mma.h"

#include "simt/half.h"
#include "simt/multiprocessor.h"

namespace kvp::simt {
namespace {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr int kRows = MmaOperands::kRows;
constexpr int kPairs = MmaOperands::kPairs;

using Bits8 = uint32_t __attribute__((vector_size(32), may_alias));
using Floats8 = float __attribute__((vector_size(32), may_alias));
static_assert(MmaOperands::kColumns == 8 && kPairs == 8);

// The low and the high halves of eight words.
template <HalfFormat kFormat>
[[gnu::always_inline]] inline void widen(const uint32_t (&words)[8], Floats8 (&halves)[2]) {
  const Bits8 bits = reinterpret_cast<const Bits8&>(words);
  if constexpr (kFormat == HalfFormat::kBf16) {
    halves[0] = bf16_to_float<Floats8>(bits & 0xFFFFu);
    halves[1] = bf16_to_float<Floats8>(bits >> 16);
  } else {
    halves[0] = fp16_to_float<Floats8>(bits & 0xFFFFu);
    halves[1] = fp16_to_float<Floats8>(bits >> 16);
  }
}

// d += a b. Always inlined, to be compiled for the instruction set of the function around it.
template <HalfFormat kFormat>
[[gnu::always_inline]] inline void multiply(MmaOperands& x) {
  Floats8 a[kRows][2], b[kPairs][2];
  for (int row = 0; row < kRows; ++row) widen<kFormat>(x.a[row], a[row]);
  for (int pair = 0; pair < kPairs; ++pair) widen<kFormat>(x.b[pair], b[pair]);

  auto* const d = reinterpret_cast<Floats8*>(x.d);
  constexpr int kBlock = 8;  // rows whose sums fit the registers
  for (int first = 0; first < kRows; first += kBlock) {
    Floats8 sum[kBlock];
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) sum[i] = d[first + i];
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
        for (int i = 0; i < kBlock; ++i) sum[i] += a[first + i][half][pair] * b[pair][half];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) d[first + i] = sum[i];
  }
}

void multiply_bf16(MmaOperands& x) { multiply<HalfFormat::kBf16>(x); }
void multiply_fp16(MmaOperands& x) { multiply<HalfFormat::kFp16>(x); }

#ifdef __x86_64__
[[gnu::target("avx2,fma")]] void multiply_bf16_avx2(MmaOperands& x) {
  multiply<HalfFormat::kBf16>(x);
}
[[gnu::target("avx2,fma")]] void multiply_fp16_avx2(MmaOperands& x) {
  multiply<HalfFormat::kFp16>(x);
}
#endif

struct Multiplier {
  void (*bf16)(MmaOperands&) = multiply_bf16;
  void (*fp16)(MmaOperands&) = multiply_fp16;

  Multiplier() {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      bf16 = multiply_bf16_avx2;
      fp16 = multiply_fp16_avx2;
    }
#endif
  }
};

const Multiplier multiplier;

// By the lane that comes last.
[[gnu::noinline]] void complete(Thread& self, HalfFormat format, Site site) {
  Warp& warp = *self.warp;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (same_place(warp.site[lane], site)) continue;
    // .aligned: all lanes must execute the same instruction.
    self.multiprocessor->fail("different mma calls by lanes of a warp: lane %d (%s), lane %d (%s)",
                              self.lane, place(site).text, lane, place(warp.site[lane]).text);
  }
  (format == HalfFormat::kBf16 ? multiplier.bf16 : multiplier.fp16)(warp.mma);
  release_lanes(warp, kAllLanes);
}

}  // namespace

void multiply_fragments(HalfFormat format, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                        uint32_t b1, Site site) {
  Thread& self = this_thread();
  Warp& warp = *self.warp;
  const auto lane = static_cast<unsigned>(self.lane);
  warp.mma.put(lane, a, b0, b1, d);
  if (enter_warp_call(self, WarpCall::kMma, kAllLanes, site)) complete(self, format, site);
  self.multiprocessor->wait(self);
  self.state = Thread::State::kAwake;
  warp.mma.take(lane, d);
}

}  // namespace kvp::simt
