// An engine's use of libkvp on a GPU, without Python and torch: a policy becomes fragments on the
// device, a cache is evicted on a stream, nothing waits until the engine does.
//
//   nvcc -std=c++17 evict_cuda.cu -I<prefix>/include -L<prefix>/lib -lkvp && ./a.out
#include <cuda_runtime.h>
#include <kvp/kvp.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int kLayers = 4, kBatch = 2, kHeads = 3, kSlots = 5000, kDim = 128, kBudget = 1024;
constexpr int64_t kRows = int64_t{kLayers} * kBatch * kHeads;

void require(bool holds, const char* what, const char* why) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

void check(kvp_status status) { require(status == KVP_OK, "kvp", kvp_last_error()); }
void check(cudaError_t status) {
  require(status == cudaSuccess, "cuda", cudaGetErrorString(status));
}

// Memory on the device.
template <class T>
struct Device {
  T* data = nullptr;
  size_t count;

  explicit Device(size_t n) : count(n) { check(cudaMalloc(&data, n * sizeof(T))); }
  explicit Device(const std::vector<T>& from) : Device(from.size()) {
    check(cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(data); }

  std::vector<T> fetch() const {
    std::vector<T> to(count);
    check(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }
};

std::mt19937 generator(1);

std::vector<float> normal(size_t n, float scale) {
  std::normal_distribution<float> draw(0.0f, scale);
  std::vector<float> values(n);
  for (float& x : values) x = draw(generator);
  return values;
}

}  // namespace

int main() {
  // A random policy of the small family; an engine reads a policy file (docs/c_api.md).
  const kvp_policy_shape shape{
      kLayers, kHeads, kDim, kDim, 64, 8, kSlots, KVP_POLICY_SHARED_POSITIONS, 0.0f};
  int64_t floats = 0, block_bytes = 0, row_bytes = 0;
  check(kvp_policy_block_floats(&shape, &floats));
  check(kvp_policy_fragment_bytes(&shape, &block_bytes, &row_bytes));
  std::vector<std::byte> fragments(kLayers * kHeads * block_bytes);
  for (int64_t head = 0; head < kLayers * kHeads; ++head) {
    const std::vector<float> packed =
        normal(floats, 0.1f);  // kvp_policy_pack makes it from weights
    check(kvp_policy_fragments(&shape, KVP_FLOAT16, packed.data(),
                               fragments.data() + head * block_bytes));
  }
  std::vector<std::byte> table(kSlots * row_bytes);
  check(kvp_policy_position_fragments(&shape, KVP_FLOAT16, normal(kSlots * 8, 1.0f).data(), kSlots,
                                      table.data()));
  const Device<std::byte> weights(fragments), positions(table);
  const kvp_policy policy{sizeof(kvp_policy), shape, KVP_FLOAT16, weights.data, positions.data};

  // The cache, fp16 [B, H, T, D] per layer, and per-head positions that move with it.
  const size_t row_elements = size_t{kSlots} * kDim;
  const Device<uint16_t> k(std::vector<uint16_t>(kRows * row_elements, 0x3555));
  const Device<uint16_t> v(std::vector<uint16_t>(kRows * row_elements, 0xB266));
  std::vector<int32_t> numbers(kRows * kSlots);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i % kSlots);
  const Device<int32_t> pos(numbers);
  std::vector<kvp_layer> layers(kLayers);
  for (int l = 0; l < kLayers; ++l) {
    const int64_t rows = int64_t{l} * kBatch * kHeads;
    layers[l].slots = kSlots;
    for (const auto& [view, memory] : {std::pair{&layers[l].k, k.data}, {&layers[l].v, v.data}}) {
      *view = {memory + rows * row_elements, int64_t{kHeads} * kSlots * kDim,
               int64_t{kSlots} * kDim, kDim, 1};
    }
    layers[l].pos = {pos.data + rows * kSlots, int64_t{kHeads} * kSlots, kSlots, 1, 1};
  }

  // Lengths live on the device: the second sequence is shorter.
  const Device<int32_t> lengths(std::vector<int32_t>{kSlots, 3000});
  const Device<int32_t> new_lengths(kRows), kept(kRows * kBudget), changed(1);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));

  kvp_args args{};
  args.struct_size = sizeof args;
  args.layer_size = sizeof(kvp_layer);
  args.device = KVP_CUDA;
  args.stream = stream;
  args.threads = 1;
  args.dtype = KVP_FLOAT16;
  args.pos_dtype = KVP_INT32;
  args.n_layers = kLayers;
  args.n_batch = kBatch;
  args.n_heads = kHeads;
  args.head_dim_k = args.head_dim_v = kDim;
  args.layers = layers.data();
  args.lengths = {lengths.data, 0, 1, 0, 0};
  args.budget.value = kBudget;
  args.sinks = 4;
  args.recent = 16;
  args.policy = &policy;
  args.new_lengths = new_lengths.data;
  args.kept = kept.data;
  args.capacity = kBudget;
  args.changed = changed.data;
  size_t bytes = 0;
  check(kvp_workspace_bytes(KVP_OP_EVICT, &args, &bytes));
  const Device<std::byte> workspace(bytes);
  args.workspace = workspace.data;
  args.workspace_bytes = bytes;
  check(kvp_evict(&args));
  check(cudaStreamSynchronize(stream));

  const std::vector<int32_t> counts = new_lengths.fetch(), slots = kept.fetch(),
                             logical = pos.fetch();
  for (int64_t row = 0; row < kRows; ++row) {
    require(counts[row] == kBudget, "evict_cuda", "a row has another length");
    for (int i = 0; i < kBudget; ++i) {
      require(logical[row * kSlots + i] == slots[row * kBudget + i], "evict_cuda",
              "a position did not move with its entry");
    }
  }
  require(changed.fetch()[0] == 1, "evict_cuda", "no row was changed");
  std::printf("%lld rows of %d and 3000 entries keep %d each\n", static_cast<long long>(kRows),
              kSlots, kBudget);
  return 0;
}
