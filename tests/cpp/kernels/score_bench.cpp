// GFLOP/s of score_tile on one core, per instruction set, for both families of policies. Counts
// the formula's multiply-adds only (the gains' triangles as triangles), at 2 FLOP each.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "score_case.h"

namespace {

using kvp::cpu::Isa;
using kvp::cpu::ScoreTile;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Timed in slices of about a millisecond, of which the best counts: what else runs on the machine
// then hardly shows.
constexpr int kSliceTiles = 8;

void measure(const char* name, int head_dim, int hidden, int features, uint32_t flags, int slots,
             kvp_dtype dtype) {
  std::mt19937 random(0);
  kvp_policy_shape shape = {};
  shape.layers = shape.kv_heads = 1;
  shape.head_dim_k = shape.head_dim_v = head_dim;
  shape.hidden = hidden;
  shape.position_dim = features;
  shape.position_rows = 4096;
  shape.flags = flags;
  shape.norm_eps = 1e-5f;
  const kvp::test::RandomPolicy policy(shape, random);
  kvp::test::Elements k(dtype, static_cast<size_t>(slots) * head_dim);
  kvp::test::Elements v(dtype, static_cast<size_t>(slots) * head_dim);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < int64_t{slots} * head_dim; ++i) {
    k.set(i, normal(random));
    v.set(i, normal(random));
  }
  std::vector<int32_t> pos(slots);
  for (int s = 0; s < slots; ++s) pos[s] = s;
  std::vector<float> scores(slots);
  std::vector<char> scratch(kvp::cpu::score_scratch_bytes(shape));

  ScoreTile tile = {};
  tile.shape = &shape;
  tile.weights = policy.packed.get();
  tile.positions = policy.positions.data();
  tile.k = k.data();
  tile.v = v.data();
  tile.k_stride = tile.v_stride = head_dim;
  tile.dtype = dtype;
  tile.pos = pos.data();
  tile.pos_stride = 1;
  tile.pos_dtype = KVP_INT32;
  tile.scores = scores.data();
  tile.scores_stride = 1;

  tile.count = std::min(slots, kSliceTiles * kvp::cpu::kTileEntries);
  const double flop = 2.0 * static_cast<double>(policy.multiply_adds()) * tile.count;
  for (const Isa& isa : kvp::cpu::available_isas()) {
    double best = 1e9;
    const double until = seconds() + 1.0;
    while (seconds() < until) {
      tile.first_slot = (tile.first_slot + tile.count) % (slots - tile.count + 1);
      const double start = seconds();
      isa.score_tile(tile, scratch.data());
      best = std::min(best, seconds() - start);
    }
    std::printf("%-20s %-8s %4d entries %8.0f ns/entry %7.1f GFLOP/s\n", name, isa.name, tile.count,
                best / tile.count * 1e9, flop / best * 1e-9);
  }
}

}  // namespace

int main() {
  constexpr uint32_t kPaper = KVP_POLICY_GAINS | KVP_POLICY_NORMS;
  measure("small 64-64 fp32", 64, 64, 8, 0, 4096, KVP_FLOAT32);
  measure("small 64-64 bf16", 64, 64, 8, 0, 4096, KVP_BFLOAT16);
  measure("small 64-64 fp32", 64, 64, 8, 0, 1, KVP_FLOAT32);
  measure("paper 128-256 fp32", 128, 256, 32, kPaper, 2048, KVP_FLOAT32);
  measure("paper 128-256 fp16", 128, 256, 32, kPaper, 2048, KVP_FLOAT16);
  measure("paper 128-256 fp32", 128, 256, 32, kPaper, 1, KVP_FLOAT32);
  return 0;
}
