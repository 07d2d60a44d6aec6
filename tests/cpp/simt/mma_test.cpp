// mma.m16n8k16 against the fragment tables of the PTX ISA, entry by entry, and against a product in
// double precision.
#include "cuda/ptx/mma.cuh"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>

#include "simt/half.h"
#include "testing.h"

namespace {

using kvp::cuda::Bf16;
using kvp::cuda::Fp16;
using namespace simt_test;

// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type": for each lane, and each
// element of its fragment, the row and column of the matrix.
struct Place {
  int row;
  int column;
};

struct Tables {
  Place a[32][8];  // two elements to a register, the first in the low half
  Place b[32][4];
  Place d[32][4];

  Tables() {
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane >> 2, in_group = lane % 4;
      for (int i = 0; i < 8; ++i) {
        const bool upper = i == 0 || i == 1 || i == 4 || i == 5;
        a[lane][i] = {upper ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
      }
      for (int i = 0; i < 4; ++i) {
        b[lane][i] = {in_group * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
        d[lane][i] = {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
      }
    }
  }
};

const Tables tables;

struct Problem {
  uint16_t a[16][16];
  uint16_t b[16][8];
  float d[16][8];
};

// What each lane holds.
struct Fragments {
  uint32_t a[32][4];
  uint32_t b[32][2];
  float d[32][4];

  explicit Fragments(const Problem& problem) : a{}, b{}, d{} {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 8; ++i) {
        const Place at = tables.a[lane][i];
        a[lane][i / 2] |= static_cast<uint32_t>(problem.a[at.row][at.column]) << i % 2 * 16;
      }
      for (int i = 0; i < 4; ++i) {
        const Place at = tables.b[lane][i];
        b[lane][i / 2] |= static_cast<uint32_t>(problem.b[at.row][at.column]) << i % 2 * 16;
        d[lane][i] = problem.d[tables.d[lane][i].row][tables.d[lane][i].column];
      }
    }
  }

  void store(float (&out)[16][8]) const {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        out[tables.d[lane][i].row][tables.d[lane][i].column] = d[lane][i];
      }
    }
  }
};

template <class Half>
__global__ void multiply(Fragments* warps, int products) {
  Fragments& fragments = warps[threadIdx.x / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < products; ++i) {
    kvp::cuda::mma_m16n8k16<Half>(fragments.d[lane], fragments.a[lane], fragments.b[lane][0],
                                  fragments.b[lane][1]);
  }
}

template <class Half>
void run_product(const Problem& problem, int products, float (&out)[16][8]) {
  Fragments fragments(problem);
  expect_runs("multiply", multiply<Half>, 1, 32, 0, &fragments, products);
  fragments.store(out);
}

template <class Half>
float widen(uint16_t half) {
  return kvp::cuda::unpack_low<Half>(half);
}

template <class Half>
uint16_t narrow(float x) {
  return static_cast<uint16_t>(kvp::cuda::pack<Half>(x, 0));
}

// A single one in a and in b: the only thing that may change is where they meet.
template <class Half>
__global__ void multiply_ones(float (*out)[32][4]) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t one = kvp::cuda::pack<Half>(1.0f, 0.0f);
  const int row = static_cast<int>(blockIdx.x);
  for (int k = 0; k < 16; ++k) {
    for (int column = 0; column < 8; ++column) {
      uint32_t a[4] = {}, b[2] = {};
      for (int i = 0; i < 8; ++i) {
        const Place at = tables.a[lane][i];
        if (at.row == row && at.column == k) a[i / 2] |= one << i % 2 * 16;
      }
      for (int i = 0; i < 4; ++i) {
        const Place at = tables.b[lane][i];
        if (at.row == k && at.column == column) b[i / 2] |= one << i % 2 * 16;
      }
      float (&d)[4] = out[(row * 16 + k) * 8 + column][lane];
      kvp::cuda::mma_m16n8k16<Half>(d, a, b[0], b[1]);
    }
  }
}

template <class Half>
void test_places() {
  static float out[16 * 16 * 8][32][4];
  std::memset(out, 0, sizeof(out));
  expect_runs("multiply_ones", multiply_ones<Half>, 16, 32, 0, &out[0]);
  for (int problem = 0; problem < 16 * 16 * 8; ++problem) {
    const int row = problem / 128, column = problem % 8;
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const Place at = tables.d[lane][i];
        const float expected = at.row == row && at.column == column ? 1 : 0;
        expect(out[problem][lane][i] == expected,
               "a one in row %d, k %d, column %d: d[%d][%d] is %g", row, problem / 8 % 16, column,
               at.row, at.column, out[problem][lane][i]);
      }
    }
  }
}

template <class Half>
void test_random_products() {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  Problem problem;
  for (auto& row : problem.a) {
    for (auto& x : row) x = narrow<Half>(normal(generator));
  }
  for (auto& row : problem.b) {
    for (auto& x : row) x = narrow<Half>(normal(generator));
  }
  for (auto& row : problem.d) {
    for (auto& x : row) x = normal(generator);
  }
  constexpr int kProducts = 3;
  float out[16][8];
  run_product<Half>(problem, kProducts, out);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      double product = 0, magnitude = 0;
      for (int k = 0; k < 16; ++k) {
        const double term =
            double{widen<Half>(problem.a[row][k])} * widen<Half>(problem.b[k][column]);
        product += term;
        magnitude += std::abs(term);
      }
      const double expected = problem.d[row][column] + kProducts * product;
      expect(std::abs(out[row][column] - expected) <= 4e-6 * (1 + magnitude),
             "d[%d][%d] is %.9g, expected %.9g", row, column, out[row][column], expected);
    }
  }
}

// Each of the 65,536 operands times one, NaN, infinities and subnormals included. Every row of a
// has one of them; elsewhere b is zero only where a is finite.
template <class Half>
void test_all_operands() {
  for (int first = 0; first < 0x10000; first += 16) {
    Problem problem{};
    for (int row = 0; row < 16; ++row) {
      problem.a[row][row] = static_cast<uint16_t>(first + row);
      for (int column = 0; column < 8; ++column) problem.b[row][column] = narrow<Half>(1.0f);
    }
    float out[16][8];
    run_product<Half>(problem, 1, out);
    for (int row = 0; row < 16; ++row) {
      const float expected = widen<Half>(static_cast<uint16_t>(first + row));
      for (const float x : out[row]) {
        expect(x == expected || (std::isnan(x) && std::isnan(expected)),
               "0x%04x times one is %g, expected %g", first + row, x, expected);
      }
    }
  }
}

// Warps multiply independently of each other.
void test_many_warps() {
  Problem problem{};
  for (int i = 0; i < 16; ++i) problem.a[i][i] = narrow<Bf16>(1.0f);
  std::vector<Fragments> warps;
  for (int warp = 0; warp < 8; ++warp) {
    for (auto& row : problem.b) {
      for (auto& x : row) x = narrow<Bf16>(static_cast<float>(warp));
    }
    warps.emplace_back(problem);
  }
  expect_runs("multiply", multiply<Bf16>, 1, 256, 0, warps.data(), 5);
  for (int warp = 0; warp < 8; ++warp) {
    for (const auto& lane : warps[warp].d) {
      for (const float x : lane) expect(x == 5.0f * warp, "warp %d has %g", warp, x);
    }
  }
}

}  // namespace

int main() {
  under_all_schedules([] {
    test_random_products<Bf16>();
    test_random_products<Fp16>();
    test_many_warps();
  });
  test_places<Bf16>();
  test_places<Fp16>();
  test_all_operands<Bf16>();
  test_all_operands<Fp16>();
  return failures == 0 ? 0 : 1;
}
