// Every instruction set's score_tile against the formula in double, over random policies, caches
// and layouts; and what it must not do: touch other scores, let one entry disturb another.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "score_case.h"

#if defined(KVP_TEST_WIDE)
// The 512-bit blocking on whatever vectors this machine has.
namespace kvp::cpu::wide {
void score_tile(const ScoreTile& tile, void* scratch);
}
#endif

namespace {

using kvp::cpu::Isa;
using kvp::cpu::ScoreTile;
using kvp::test::Elements;
using kvp::test::RandomPolicy;

struct Row {
  Row(const RandomPolicy& policy, kvp_dtype dtype, int slots, int gap, std::mt19937& random)
      : policy(policy),
        slots(slots),
        k_stride(policy.shape.head_dim_k + gap),
        v_stride(policy.shape.head_dim_v + 2 * gap),
        dtype(dtype),
        // The last slot ends the allocation, so that a sanitizer sees any read past it.
        k(dtype, (slots - 1) * k_stride + policy.shape.head_dim_k),
        v(dtype, (slots - 1) * v_stride + policy.shape.head_dim_v) {
    std::normal_distribution<float> normal;
    for (int s = 0; s < slots; ++s) {
      for (int c = 0; c < policy.shape.head_dim_k; ++c) k.set(s * k_stride + c, normal(random));
      for (int c = 0; c < policy.shape.head_dim_v; ++c) v.set(s * v_stride + c, normal(random));
      pos.push_back(static_cast<int64_t>(random() % (2 * policy.shape.position_rows + 2)) - 1);
    }
    pos[0] = INT64_MAX;
    pos[slots - 1] = INT64_MIN;
  }

  ScoreTile tile(std::vector<float>& scores) const {
    ScoreTile tile = {};
    tile.shape = &policy.shape;
    tile.weights = policy.packed.get();
    tile.positions = policy.positions.data();
    tile.k = k.data();
    tile.k_stride = k_stride;
    tile.v = v.data();
    tile.v_stride = v_stride;
    tile.dtype = dtype;
    tile.pos = pos.data();
    tile.pos_stride = 1;
    tile.pos_dtype = KVP_INT64;
    tile.count = slots;
    tile.scores = scores.data();
    tile.scores_stride = 1;
    return tile;
  }

  double expected(int64_t slot, double* magnitude) const {
    std::vector<double> key, value;
    for (int c = 0; c < policy.shape.head_dim_k; ++c) key.push_back(k.get(slot * k_stride + c));
    for (int c = 0; c < policy.shape.head_dim_v; ++c) value.push_back(v.get(slot * v_stride + c));
    return policy.score(key, value, pos[slot], magnitude);
  }

  const RandomPolicy& policy;
  int slots;
  int64_t k_stride, v_stride;
  kvp_dtype dtype;
  Elements k, v;
  std::vector<int64_t> pos;
};

int failures = 0;

#define CHECK(condition, ...)                                     \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
      ++failures;                                                 \
    }                                                             \
  } while (false)

constexpr float kUntouched = 12345.0f;

// Runs the tile with scratch of exactly the promised size.
void run(const Isa& isa, const ScoreTile& tile) {
  const std::unique_ptr<char[]> scratch(new char[kvp::cpu::score_scratch_bytes(*tile.shape)]);
  isa.score_tile(tile, scratch.get());
}

// Largest error relative to the sum of the magnitudes of the terms.
double check_values(const Isa& isa, const Row& row) {
  std::vector<float> scores(row.slots, kUntouched);
  run(isa, row.tile(scores));
  double worst = 0;
  for (int s = 0; s < row.slots; ++s) {
    double magnitude;
    const double expected = row.expected(s, &magnitude);
    worst = std::max(worst, std::abs(scores[s] - expected) / magnitude);
    CHECK(std::abs(scores[s] - expected) <= 4e-6 * magnitude, "%s slot %d: %.9g, expected %.9g",
          isa.name, s, static_cast<double>(scores[s]), expected);
  }
  return worst;
}

// A list of slots, int32 positions and strided scores give the same bits, and nothing else is
// written.
void check_addressing(const Isa& isa, const Row& row) {
  std::vector<float> dense(row.slots, kUntouched), strided(3 * row.slots, kUntouched);
  run(isa, row.tile(dense));
  std::vector<int32_t> slots, pos;
  for (int s = row.slots - 1; s >= 0; s -= 2) slots.push_back(s);
  for (int64_t p : row.pos) {
    pos.push_back(static_cast<int32_t>(std::clamp<int64_t>(p, INT32_MIN, INT32_MAX)));
    pos.push_back(-7);
  }
  ScoreTile tile = row.tile(strided);
  tile.slots = slots.data();
  tile.count = static_cast<int32_t>(slots.size());
  tile.pos = pos.data();
  tile.pos_stride = 2;
  tile.pos_dtype = KVP_INT32;
  tile.scores_stride = 3;
  run(isa, tile);
  for (int i = 0; i < 3 * row.slots; ++i) {
    const int s = i / 3;
    const bool listed = i % 3 == 0 && (row.slots - 1 - s) % 2 == 0;
    CHECK(strided[i] == (listed ? dense[s] : kUntouched), "%s element %d", isa.name, i);
  }

  if (row.slots < 3) return;
  std::vector<float> middle(row.slots, kUntouched);
  tile = row.tile(middle);
  tile.first_slot = 1;
  tile.count = row.slots - 2;
  run(isa, tile);
  for (int s = 0; s < row.slots; ++s) {
    const bool inside = s > 0 && s < row.slots - 1;
    CHECK(middle[s] == (inside ? dense[s] : kUntouched), "%s slot %d", isa.name, s);
  }
}

// An entry that is not finite gets a score that is not either, and its neighbours keep theirs.
void check_isolation(const Isa& isa, Row row, std::mt19937& random) {
  std::vector<float> before(row.slots), after(row.slots);
  run(isa, row.tile(before));
  std::vector<bool> poisoned(row.slots);
  for (int s = 0; s < row.slots; s += 3) {
    poisoned[s] = true;
    const float poison = s % 2 ? NAN : s % 4 ? INFINITY : -INFINITY;
    if (random() % 2) {
      row.k.set(s * row.k_stride + static_cast<int64_t>(random() % row.policy.shape.head_dim_k),
                poison);
    } else {
      row.v.set(s * row.v_stride + static_cast<int64_t>(random() % row.policy.shape.head_dim_v),
                poison);
    }
  }
  run(isa, row.tile(after));
  for (int s = 0; s < row.slots; ++s) {
    CHECK(poisoned[s] ? !std::isfinite(after[s]) : after[s] == before[s], "%s slot %d: %g after %g",
          isa.name, s, static_cast<double>(after[s]), static_cast<double>(before[s]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
  std::vector<Isa> isas(kvp::cpu::available_isas().begin(), kvp::cpu::available_isas().end());
#if defined(KVP_TEST_WIDE)
  isas.push_back({"wide", kvp::cpu::wide::score_tile});
#endif
  const auto pick = [](std::mt19937& random, std::initializer_list<int> from) {
    return from.begin()[random() % from.size()];
  };
  for (const Isa& isa : isas) {
    double worst = 0;
    for (int round = 0; round < rounds; ++round) {
      std::mt19937 random(static_cast<uint32_t>(round));
      kvp_policy_shape shape = {};
      shape.layers = shape.kv_heads = 1;
      shape.head_dim_k = pick(random, {1, 3, 16, 31, 64, 80, 96, 112, 128, 192});
      shape.head_dim_v =
          pick(random, {0, 1, 7}) ? shape.head_dim_k : pick(random, {1, 5, 16, 100, 128});
      shape.hidden = pick(random, {1, 7, 16, 17, 48, 64, 72, 256});
      shape.position_dim = pick(random, {0, 1, 8, 32});
      shape.position_rows = pick(random, {1, 10, 500});
      shape.flags = round % 4;  // with and without gains and norms
      shape.norm_eps = 1e-5f;
      const RandomPolicy policy(shape, random);
      const int slots = pick(random, {1, 2, 5, 6, 13, 14, 15, 83, 84, 85, 200});
      const kvp_dtype dtype =
          static_cast<kvp_dtype>(pick(random, {KVP_FLOAT32, KVP_FLOAT16, KVP_BFLOAT16}));
      const Row row(policy, dtype, slots, pick(random, {0, 1, 64}), random);
      const int failed_before = failures;
      worst = std::max(worst, check_values(isa, row));
      check_addressing(isa, row);
      check_isolation(isa, row, random);
      if (failures != failed_before) {
        std::printf(
            "  in round %d: k %d v %d hidden %d positions %d x %d flags %u dtype %d slots %d\n",
            round, shape.head_dim_k, shape.head_dim_v, shape.hidden, shape.position_rows,
            shape.position_dim, shape.flags, dtype, slots);
      }
    }
    std::printf("%-8s %d policies, largest error %.1e\n", isa.name, rounds, worst);
  }
  return failures == 0 ? 0 : 1;
}
