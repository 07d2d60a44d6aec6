// The vector operations of the instruction set that this file is compiled for, against scalar
// arithmetic: exp2 and SiLU over their whole range, every fp16 and bf16 value, sums and NaN.
#include "cpu/simd.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "score_case.h"

namespace {

using V = kvp::cpu::Vec<kvp::cpu::kLanes>;
constexpr float kInf = std::numeric_limits<float>::infinity();

int failures = 0;

void expect(bool holds, const char* what, double input, double actual, double expected) {
  if (holds) return;
  std::printf("%s(%.9g) is %.9g, expected %.9g\n", what, input, actual, expected);
  ++failures;
}

float lane(V x, int i) {
  float lanes[V::kWidth];
  x.store(lanes);
  return lanes[i];
}

// Each in another lane, so that no lane goes untested.
template <class Operation>
float apply(Operation operation, float x, int i) {
  float lanes[V::kWidth] = {};
  lanes[i] = x;
  return lane(operation(V::load(lanes)), i);
}

void test_exp2() {
  const auto exp2 = [](V x) {
    const auto power = kvp::cpu::exp2(x);
    return power.significand * power.scale;
  };
  double worst = 0;
  int i = 0;
  for (double x = -125.4; x < 127.99; x += 1.0 / 1024, i = (i + 1) % V::kWidth) {
    const float in = static_cast<float>(x);
    const double expected = std::exp2(double{in}), actual = apply(exp2, in, i);
    worst = std::max(worst, std::abs(actual / expected - 1));
    expect(std::abs(actual / expected - 1) < 2.5e-7, "exp2", in, actual, expected);
  }
  for (const float x : {-126.6f, -150.0f, -1e30f, -kInf}) {
    expect(apply(exp2, x, 0) == 0, "exp2", x, apply(exp2, x, 0), 0);
  }
  for (const float x : {128.0f, 129.5f, 1e30f, kInf}) {
    expect(apply(exp2, x, 0) == kInf, "exp2", x, apply(exp2, x, 0), kInf);
  }
  expect(apply(exp2, 0, 0) == 1, "exp2", 0, apply(exp2, 0, 0), 1);
  expect(std::isnan(apply(exp2, NAN, 0)), "exp2", NAN, apply(exp2, NAN, 0), NAN);
  std::printf("exp2: largest relative error %.2g\n", worst);
}

void test_silu() {
  const auto silu = [](V x) { return kvp::cpu::silu(x); };
  int i = 0;
  for (double x = -200; x < 200; x += 1.0 / 64, i = (i + 1) % V::kWidth) {
    const float in = static_cast<float>(x);
    const double expected = in / (1 + std::exp(-double{in})), actual = apply(silu, in, i);
    const double relative = 4e-7 + 8e-8 * std::abs(x);
    expect(std::abs(actual - expected) <= relative * std::abs(expected) + 1e-35, "silu", in, actual,
           expected);
  }
  expect(apply(silu, 3e38f, 0) == 3e38f, "silu", 3e38, apply(silu, 3e38f, 0), 3e38);
  expect(apply(silu, -3e38f, 0) == 0, "silu", -3e38, apply(silu, -3e38f, 0), 0);
  expect(std::isnan(apply(silu, NAN, 0)), "silu", NAN, apply(silu, NAN, 0), NAN);
  expect(apply(silu, kInf, 0) == kInf, "silu", kInf, apply(silu, kInf, 0), kInf);
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

void test_narrow_loads() {
  for (int base = 0; base < 65536; base += V::kWidth) {
    kvp::cpu::Float16 halves[V::kWidth];
    kvp::cpu::BFloat16 bfloats[V::kWidth];
    for (int i = 0; i < V::kWidth; ++i) {
      halves[i].bits = bfloats[i].bits = static_cast<uint16_t>(base + i);
    }
    for (int i = 0; i < V::kWidth; ++i) {
      const uint16_t bits = halves[i].bits;
      const float half = kvp::test::half_to_float(bits), bfloat = kvp::test::bfloat_to_float(bits);
      const auto check = [&](const char* what, float actual, float expected) {
        expect(same(actual, expected), what, bits, actual, expected);
      };
      check("vector fp16", lane(V::load(halves), i), half);
      check("scalar fp16", kvp::cpu::load_element(halves + i), half);
      check("vector bf16", lane(V::load(bfloats), i), bfloat);
      check("scalar bf16", kvp::cpu::load_element(bfloats + i), bfloat);
    }
  }
}

void test_sum() {
  float lanes[V::kWidth];
  float expected = 0;
  for (int i = 0; i < V::kWidth; ++i) expected += lanes[i] = static_cast<float>(1 << i);
  expect(sum(V::load(lanes)) == expected, "sum", 0, sum(V::load(lanes)), expected);
}

}  // namespace

int main() {
  test_exp2();
  test_silu();
  test_narrow_loads();
  test_sum();
  return failures == 0 ? 0 : 1;
}
