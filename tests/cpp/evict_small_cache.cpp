// An engine's use of libkvp from start to end: pack a policy, score a cache, evict it. Every
// result is compared with plain loops over the formula in kvp.h.
#include <kvp/kvp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kLayers = 2, kBatch = 2, kHeads = 3, kSlots = 150, kDimK = 12, kDimV = 10;
constexpr int kHidden = 20, kPositionDim = 5, kPositionRows = 100, kBudget = 40;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s (last error: %s)\n", what, kvp_last_error());
  std::exit(1);
}

void require_ok(kvp_status status, const char* call) { require(status == KVP_OK, call); }

struct Floats {
  std::mt19937 generator{7};
  std::vector<float> operator()(size_t n, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(n);
    for (float& value : values) value = normal(generator);
    return values;
  }
};

// The unpacked weights of one (layer, head).
using Weights = std::map<std::string, std::vector<float>>;

double silu(double x) { return x / (1 + std::exp(-x)); }

// matrix [rows, x.size()] times x, plus bias.
std::vector<double> affine(const std::vector<float>& matrix, const std::vector<double>& x,
                           const std::vector<float>& bias) {
  std::vector<double> y(bias.begin(), bias.end());
  for (size_t r = 0; r < y.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) y[r] += double{matrix[r * x.size() + c]} * x[c];
  }
  return y;
}

double gain(const Weights& w, const std::string& branch, const std::vector<double>& x) {
  double sum = w.at("gain_" + branch + ".offset")[0];
  for (double y : affine(w.at("gain_" + branch + ".weight"), x, w.at("gain_" + branch + ".bias"))) {
    sum += y * y;
  }
  return 1 / std::sqrt(sum);
}

std::vector<double> norm_silu(std::vector<double> z, const Weights& w, const std::string& name,
                              double eps) {
  double mean_square = 0;
  for (double x : z) mean_square += x * x / static_cast<double>(z.size());
  for (size_t i = 0; i < z.size(); ++i) {
    z[i] = silu(z[i] / std::sqrt(mean_square + eps) * w.at(name + ".weight")[i] +
                w.at(name + ".bias")[i]);
  }
  return z;
}

double score(const Weights& w, const float* k, const float* v, const float* features, double eps) {
  const std::vector<double> key(k, k + kDimK), value(v, v + kDimV);
  const double gain_k = gain(w, "k", key), gain_v = gain(w, "v", value);
  std::vector<double> x;
  for (double c : key) x.push_back(gain_k * c);
  for (double c : value) x.push_back(gain_v * c);
  x.insert(x.end(), features, features + kPositionDim);
  std::vector<double> z = affine(w.at("input.weight"), x, w.at("input.bias"));
  for (int i = 0; i < kHidden; ++i) {
    z[i] += gain_k * w.at("input.gain_k")[i] + gain_v * w.at("input.gain_v")[i];
  }
  const std::vector<double> h1 = norm_silu(z, w, "norm1", eps);
  const std::vector<double> h2 =
      norm_silu(affine(w.at("hidden.weight"), h1, w.at("hidden.bias")), w, "norm2", eps);
  return affine(w.at("output.weight"), h2, w.at("output.bias"))[0];
}

float* align64(std::vector<float>& storage) {
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  return storage.data() + (64 - address % 64) % 64 / sizeof(float);
}

}  // namespace

int main() {
  Floats random;
  const kvp_policy_shape shape{
      kLayers,       kHeads,
      kDimK,         kDimV,
      kHidden,       kPositionDim,
      kPositionRows, KVP_POLICY_GAINS | KVP_POLICY_NORMS | KVP_POLICY_SHARED_POSITIONS,
      1e-5f};

  // A random policy, kept unpacked for the loops above and packed for the library.
  int32_t n_tensors = 0;
  require_ok(kvp_policy_tensors(&shape, nullptr, 0, &n_tensors), "kvp_policy_tensors (count)");
  std::vector<kvp_policy_tensor> tensors(n_tensors);
  require_ok(kvp_policy_tensors(&shape, tensors.data(), n_tensors, &n_tensors),
             "kvp_policy_tensors");
  int64_t block = 0;
  require_ok(kvp_policy_block_floats(&shape, &block), "kvp_policy_block_floats");
  std::vector<float> storage(kLayers * kHeads * block + 16);
  float* packed = align64(storage);
  std::vector<Weights> weights(kLayers * kHeads);
  for (size_t head = 0; head < weights.size(); ++head) {
    std::vector<const float*> pointers;
    for (const kvp_policy_tensor& tensor : tensors) {
      std::vector<float>& data = weights[head][tensor.name];
      data = random(size_t(tensor.rows) * std::max(tensor.cols, 1), 0.3f);
      if (std::string(tensor.name).find(".offset") != std::string::npos) data = {0.5f};
      pointers.push_back(data.data());
    }
    require_ok(kvp_policy_pack(&shape, pointers.data(), packed + head * block), "kvp_policy_pack");
  }
  const std::vector<float> positions = random(kPositionRows * kPositionDim);
  const kvp_policy policy{sizeof(kvp_policy), shape, KVP_FLOAT32, packed, positions.data()};

  // A cache [L, B, H, T, D] whose second sequence is padded on the left.
  const size_t rows = kLayers * kBatch * kHeads;
  std::vector<float> k = random(rows * kSlots * kDimK), v = random(rows * kSlots * kDimV);
  std::vector<float> scores(rows * kSlots);
  std::vector<int32_t> pos(kBatch * kSlots);
  const int padding[kBatch] = {0, 30};
  for (int b = 0; b < kBatch; ++b) {
    for (int t = 0; t < kSlots; ++t) pos[b * kSlots + t] = std::max(t - padding[b], -1);
  }
  std::vector<kvp_layer> layers(kLayers);
  for (int l = 0; l < kLayers; ++l) {
    const int64_t row = int64_t{l} * kBatch * kHeads * kSlots;
    layers[l] = {kSlots,
                 {&k[row * kDimK], kHeads * kSlots * kDimK, kSlots * kDimK, kDimK, 1},
                 {&v[row * kDimV], kHeads * kSlots * kDimV, kSlots * kDimV, kDimV, 1},
                 {pos.data(), kSlots, 0, 1, 1},
                 {&scores[row], kHeads * kSlots, kSlots, 1, 1}};
  }

  std::vector<int32_t> new_lengths(rows), kept(rows * kBudget), new_pos(rows * kBudget);
  int32_t changed = -1;
  kvp_args args{};
  args.struct_size = sizeof(kvp_args);
  args.layer_size = sizeof(kvp_layer);
  args.device = KVP_CPU;
  args.threads = 2;
  args.dtype = KVP_FLOAT32;
  args.pos_dtype = KVP_INT32;
  args.n_layers = kLayers;
  args.n_batch = kBatch;
  args.n_heads = kHeads;
  args.head_dim_k = kDimK;
  args.head_dim_v = kDimV;
  args.layers = layers.data();
  args.lengths.value = -1;
  args.budget.value = kBudget;
  args.sinks = 4;
  args.recent = 8;
  args.policy = &policy;
  args.new_lengths = new_lengths.data();
  args.new_pos = new_pos.data();
  args.kept = kept.data();
  args.capacity = kBudget;
  args.changed = &changed;

  std::vector<std::byte> workspace;
  for (const kvp_op op : {KVP_OP_SCORE, KVP_OP_EVICT}) {
    size_t bytes = 0;
    require_ok(kvp_workspace_bytes(op, &args, &bytes), "kvp_workspace_bytes");
    workspace.resize(std::max(workspace.size(), bytes));
  }
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();

  require_ok(kvp_score(&args), "kvp_score");
  for (size_t row = 0; row < rows; ++row) {
    const size_t b = row / kHeads % kBatch, head = row / kHeads / kBatch * kHeads + row % kHeads;
    for (int t = 0; t < kSlots; ++t) {
      const float got = scores[row * kSlots + t];
      const int32_t p = pos[b * kSlots + t];
      if (p < 0) {
        require(std::isnan(got), "padding has no score");
        continue;
      }
      const double expected =
          score(weights[head], &k[(row * kSlots + t) * kDimK], &v[(row * kSlots + t) * kDimV],
                &positions[std::min(p, kPositionRows - 1) * kPositionDim], shape.norm_eps);
      require(std::abs(got - expected) <= 1e-4 * (1 + std::abs(expected)), "a score is right");
    }
  }

  // Evict by fresh scores, then compare with sorting those computed before.
  const std::vector<float> old_k = k, old_v = v, old_scores = scores;
  for (kvp_layer& layer : layers) layer.scores.data = nullptr;
  require_ok(kvp_evict(&args), "kvp_evict");
  require(changed == 1, "changed");
  for (size_t row = 0; row < rows; ++row) {
    const size_t b = row / kHeads % kBatch;
    const int first = padding[b];
    std::vector<int> middle(kSlots - first - args.sinks - args.recent);
    std::iota(middle.begin(), middle.end(), first + args.sinks);
    const float* s = &old_scores[row * kSlots];
    std::stable_sort(middle.begin(), middle.end(), [s](int x, int y) { return s[x] > s[y]; });
    middle.resize(kBudget - args.sinks - args.recent);
    for (int i = 0; i < args.sinks; ++i) middle.push_back(first + i);
    for (int i = 0; i < args.recent; ++i) middle.push_back(kSlots - args.recent + i);
    std::sort(middle.begin(), middle.end());

    require(new_lengths[row] == kBudget, "new_lengths");
    for (int i = 0; i < kBudget; ++i) {
      const int slot = middle[i];
      require(kept[row * kBudget + i] == slot, "kept");
      require(new_pos[row * kBudget + i] == pos[b * kSlots + slot], "new_pos");
      require(std::equal(&k[(row * kSlots + i) * kDimK], &k[(row * kSlots + i) * kDimK] + kDimK,
                         &old_k[(row * kSlots + slot) * kDimK]),
              "K of a survivor");
      require(std::equal(&v[(row * kSlots + i) * kDimV], &v[(row * kSlots + i) * kDimV] + kDimV,
                         &old_v[(row * kSlots + slot) * kDimV]),
              "V of a survivor");
    }
  }

  // What is left fits the budget: nothing happens.
  args.lengths = {new_lengths.data(), kBatch * kHeads, kHeads, 1, 0};
  std::vector<int32_t> lengths_again(rows);
  args.new_lengths = lengths_again.data();
  const std::vector<float> once = k;
  for (int b = 0; b < kBatch; ++b) {
    for (int t = 0; t < kSlots; ++t) pos[b * kSlots + t] = t;
  }
  require_ok(kvp_evict(&args), "kvp_evict (again)");
  require(changed == 0 && once == k && lengths_again == new_lengths, "a no-op");
  std::puts("scores, survivors and refusals are right");
  return 0;
}
