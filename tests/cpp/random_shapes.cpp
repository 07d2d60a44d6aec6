// Random caches and options through every operation, for runs under sanitizers: memory is
// allocated to the byte, so a stray access is caught, and several callers run at once. Asserts
// what holds for any input: counts, order, origin of the survivors, and fork safety.
//
//   random_shapes [rounds] [simt]     simt: the CUDA kernels on the host, in random schedules
#include <kvp/kvp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

// Of builds with KVP_SIMT.
extern "C" [[gnu::weak]] int kvp_simt_configure(int schedule, uint64_t seed, int os_threads);

namespace {

kvp_device device = KVP_CPU;

void require(bool holds, const char* what, unsigned seed) {
  if (holds) return;
  std::fprintf(stderr, "FAILED with seed %u: %s (last error: %s)\n", seed, what, kvp_last_error());
  std::abort();
}

struct Random {
  std::mt19937 generator;
  int operator()(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(generator);
  }
};

// [B, H, T, channels] in [B, H, T, D] or [B, T, H, D] storage, filled by value(b, h, t, c).
template <typename T>
struct Tensor {
  template <typename Value>
  Tensor(int batch, int heads, int slots, int channels, bool slots_first, Value value)
      : data(size_t(batch) * heads * slots * channels) {
    const int64_t d = channels;
    view = slots_first ? kvp_view{nullptr, heads * slots * d, d, heads * d, 1}
                       : kvp_view{nullptr, heads * slots * d, slots * d, d, 1};
    view.data = data.data();
    for (int b = 0; b < batch; ++b) {
      for (int h = 0; h < heads; ++h) {
        for (int t = 0; t < slots; ++t) {
          for (int c = 0; c < channels; ++c) at(b, h, t, c) = value(b, h, t, c);
        }
      }
    }
  }
  T& at(int b, int h, int t, int c = 0) {
    return data[b * view.stride_batch + h * view.stride_head + t * view.stride_slot + c];
  }
  std::vector<T> data;
  kvp_view view;
};

using Entries = Tensor<uint16_t>;

// A policy in the form that the device's kernels read, in aligned memory to the byte.
class DevicePolicy {
 public:
  DevicePolicy(const kvp_policy_shape& shape, const std::vector<float>& blocks,
               const std::vector<float>& positions, unsigned seed) {
    if (device == KVP_CPU) {
      weights_ = copy(blocks.data(), blocks.size() * sizeof(float));
      positions_ = copy(positions.data(), positions.size() * sizeof(float));
      view = {sizeof(kvp_policy), shape, KVP_FLOAT32, weights_.get(), positions_.get()};
      return;
    }
    const int heads = shape.layers * shape.kv_heads;
    int64_t floats = 0, block_bytes = 0, row_bytes = 0;
    require(kvp_policy_block_floats(&shape, &floats) == KVP_OK, "block", seed);
    require(kvp_policy_fragment_bytes(&shape, &block_bytes, &row_bytes) == KVP_OK, "bytes", seed);
    const int64_t rows =
        int64_t{shape.position_rows} * (shape.flags & KVP_POLICY_SHARED_POSITIONS ? 1 : heads);
    weights_ = copy(nullptr, static_cast<size_t>(heads * block_bytes));
    positions_ = copy(nullptr, static_cast<size_t>(rows * row_bytes));
    for (int i = 0; i < heads; ++i) {
      require(kvp_policy_fragments(&shape, KVP_FLOAT16, &blocks[i * floats],
                                   weights_.get() + i * block_bytes) == KVP_OK,
              "fragments", seed);
    }
    require(kvp_policy_position_fragments(&shape, KVP_FLOAT16, positions.data(), rows,
                                          positions_.get()) == KVP_OK,
            "fragments of positions", seed);
    view = {sizeof(kvp_policy), shape, KVP_FLOAT16, weights_.get(), positions_.get()};
  }

  kvp_policy view;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  static Memory copy(const void* from, size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes == 0 ? 1 : bytes) != 0) std::abort();
    if (from != nullptr && bytes > 0) std::memcpy(memory, from, bytes);
    return Memory(static_cast<std::byte*>(memory));
  }

  Memory weights_;
  Memory positions_;
};

uint16_t tag(int h, int t, int c) { return static_cast<uint16_t>(h * 4096 + t * 16 + c % 16); }

void run_one(unsigned seed) {
  Random random{std::mt19937(seed)};
  const int n_layers = random(1, 3), batch = random(1, 3), heads = random(1, 4);
  const int dim_k = random(1, 40), dim_v = random(1, 40), capacity = random(1, 250);
  const int mode = random(0, 2), order = random(0, 1);
  const bool with_policy = random(0, 2) > 0;

  std::vector<std::unique_ptr<Entries>> k, v;
  std::vector<std::unique_ptr<Tensor<float>>> scores;
  std::vector<std::unique_ptr<Tensor<int64_t>>> pos;
  std::vector<kvp_layer> layers;
  for (int l = 0; l < n_layers; ++l) {
    const int slots = random(1, capacity);
    const bool slots_first = random(0, 1);
    const auto value = [](int, int h, int t, int c) { return tag(h, t, c); };
    const auto score = [&](int, int, int, int) {
      return random(0, 4) == 0 ? std::numeric_limits<float>::quiet_NaN()
                               : static_cast<float>(random(-9, 9));
    };
    // Padding is where t + shift is a multiple of `every`, in all heads alike.
    const int every = random(0, 1) ? 1000 : random(2, 5);
    const auto position = [=](int, int, int t, int) { return t % every == every - 1 ? -1 : t; };
    k.push_back(std::make_unique<Entries>(batch, heads, slots, dim_k, slots_first, value));
    v.push_back(std::make_unique<Entries>(batch, heads, slots, dim_v, slots_first, value));
    scores.push_back(std::make_unique<Tensor<float>>(batch, heads, slots, 1, random(0, 1), score));
    pos.push_back(
        std::make_unique<Tensor<int64_t>>(batch, heads, slots, 1, random(0, 1), position));
    const bool owns_scores = with_policy && random(0, 1);
    layers.push_back(
        {slots, k[l]->view, v[l]->view, pos[l]->view, owns_scores ? kvp_view{} : scores[l]->view});
    if (random(0, 5) == 0 && l > 0) layers.back().k.data = nullptr;
  }

  const kvp_policy_shape shape{
      n_layers,      heads,        dim_k,          dim_v,
      random(1, 40), random(0, 9), random(1, 300), static_cast<uint32_t>(random(0, 7)),
      1e-5f};
  int64_t block = 0;
  require(kvp_policy_block_floats(&shape, &block) == KVP_OK, "block", seed);
  std::vector<float> blocks(static_cast<size_t>(n_layers * heads * block));
  for (float& weight : blocks) weight = static_cast<float>(random(-100, 100)) * 0.01f;
  const std::vector<float> positions(
      size_t(n_layers) * heads * shape.position_rows * shape.position_dim + 1, 0.25f);
  const DevicePolicy policy(shape, blocks, positions, seed);

  const int rows = n_layers * batch * heads;
  std::vector<int32_t> new_lengths(rows), kept(size_t(rows) * capacity);
  std::vector<int64_t> new_pos(size_t(rows) * capacity);
  int32_t changed = -1;
  kvp_args args{};
  args.struct_size = sizeof(kvp_args);
  args.layer_size = sizeof(kvp_layer);
  args.device = device;
  args.threads = random(1, 4);
  args.dtype = KVP_FLOAT16;
  args.pos_dtype = KVP_INT64;
  args.n_layers = n_layers;
  args.n_batch = batch;
  args.n_heads = heads;
  args.head_dim_k = dim_k;
  args.head_dim_v = dim_v;
  args.layers = layers.data();
  args.lengths.value = -1;
  args.budget.value = mode == KVP_MODEL ? random(n_layers * heads, n_layers * heads * capacity)
                                        : random(0, capacity);
  args.mode = mode;
  args.order = order;
  args.sinks = random(0, 6);
  args.recent = random(0, 6);
  args.policy = with_policy ? &policy.view : nullptr;
  args.new_lengths = new_lengths.data();
  args.new_pos = random(0, 2) ? new_pos.data() : nullptr;
  args.kept = kept.data();
  args.capacity = capacity;
  args.changed = random(0, 1) ? &changed : nullptr;
  size_t bytes = 0;
  require(kvp_workspace_bytes(KVP_OP_EVICT, &args, &bytes) == KVP_OK, "workspace", seed);
  std::vector<std::byte> workspace(bytes);
  args.workspace = workspace.data();
  args.workspace_bytes = bytes;
  require(kvp_evict(&args) == KVP_OK, "evict", seed);

  for (int l = 0; l < n_layers; ++l) {
    for (int b = 0; b < batch; ++b) {
      for (int h = 0; h < heads; ++h) {
        const int row = (l * batch + b) * heads + h;
        const int32_t n = new_lengths[row];
        require(n >= 0 && n <= layers[l].slots, "a length is in range", seed);
        require(layers[l].k.data != nullptr || n == 0, "an absent layer keeps nothing", seed);
        int32_t last = -1;
        for (int32_t i = 0; i < n; ++i) {
          const int32_t slot = kept[size_t(row) * capacity + i];
          require(order == KVP_ANY || slot > last, "survivors ascend", seed);
          require(k[l]->at(b, h, i) == tag(h, slot, 0), "K came from the slot", seed);
          require(v[l]->at(b, h, i, dim_v - 1) == tag(h, slot, dim_v - 1), "V came too", seed);
          require(pos[l]->at(b, h, i) == slot, "the position came too", seed);
          last = slot;
        }
      }
    }
  }

  // What is left can be scored.
  for (int l = 0; l < n_layers; ++l) layers[l].scores = scores[l]->view;
  args.policy = &policy.view;
  require(kvp_workspace_bytes(KVP_OP_SCORE, &args, &bytes) == KVP_OK, "workspace", seed);
  workspace.resize(bytes);
  workspace.shrink_to_fit();
  args.workspace = workspace.data();
  args.workspace_bytes = bytes;
  require(kvp_score(&args) == KVP_OK, "score", seed);
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned rounds = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 100;
  if (argc > 2 && std::strcmp(argv[2], "simt") == 0) {
    require(kvp_simt_configure != nullptr, "a build with KVP_SIMT", 0);
    device = KVP_SIMT;
  }
  const auto run = [=](unsigned first) {
    for (unsigned seed = first; seed < first + rounds; ++seed) {
      if (device == KVP_SIMT) kvp_simt_configure(2, seed, 3);
      run_one(seed);
    }
  };
  std::thread other(run, 1u << 20);
  run(0);
  other.join();

#if !defined(__SANITIZE_THREAD__)  // which cannot follow threads across fork
  // A forked child has no threads of its parent, and evicts all the same.
  const pid_t child = fork();
  if (child == 0) {
    for (unsigned seed = 0; seed < 20; ++seed) run_one(seed);
    std::exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child after fork", 0);
#endif
  std::printf("%u random caches are right\n", 2 * rounds);
  return 0;
}
