// Compiled for the lowest common instruction set: what the kernels share, and which of them this
// machine can run.
#include "cpu/score.h"

namespace kvp::cpu {

namespace baseline {
void score_tile(const ScoreTile& tile, void* scratch);
}
namespace v3 {
void score_tile(const ScoreTile& tile, void* scratch);
}
namespace v4 {
void score_tile(const ScoreTile& tile, void* scratch);
}

namespace {

constexpr int64_t kCacheLine = 64;

// Rows whose distance is a multiple of a large power of two would compete for the same few cache
// sets.
int64_t skewed_stride(int64_t floats) { return round_up_to_panel(floats) + kPanelWidth; }

int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace

ScorePlan::ScorePlan(const kvp_policy_shape& shape)
    : weights(shape),
      inputs(int64_t{shape.head_dim_k} + shape.head_dim_v + shape.position_dim),
      hidden_padded(round_up_to_panel(shape.hidden)),
      input_stride(skewed_stride(max(inputs, hidden_padded))),
      hidden_stride(skewed_stride(
          max(hidden_padded, round_up_to_panel(max(shape.head_dim_k, shape.head_dim_v))))),
      scratch_bytes(sizeof(float) * kTileEntries * (input_stride + hidden_stride) + kCacheLine) {}

size_t score_scratch_bytes(const kvp_policy_shape& shape) { return ScorePlan(shape).scratch_bytes; }

std::span<const Isa> available_isas() {
#if defined(__x86_64__)
  static constexpr Isa kIsas[] = {
      {"v4", v4::score_tile}, {"v3", v3::score_tile}, {"baseline", baseline::score_tile}};
  // Named by features, not as "x86-64-v3", which older compilers do not know. Every processor with
  // these has the rest of its level.
  const bool runs_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                       __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool runs_v4 = runs_v3 && __builtin_cpu_supports("avx512f") &&
                       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return std::span(kIsas).subspan(runs_v4 ? 0 : runs_v3 ? 1 : 2);
#else
  static constexpr Isa kIsas[] = {{"baseline", baseline::score_tile}};
  return kIsas;
#endif
}

}  // namespace kvp::cpu
