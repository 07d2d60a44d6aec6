// Prints how the CUDA backend would launch one eviction of a bf16 cache on some device, as a JSON
// object: what a table of resources needs to know and only csrc/cuda/plan.cpp decides.
//
//   cuda_plan PROCESSORS SHARED_BYTES ARCHITECTURE LAYERS HEADS HEAD_DIM HIDDEN POSITION_DIM FLAGS
//             SLOTS
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "cuda/plan.h"

namespace {

constexpr int kArguments = 11;

kvp_view dense_view(int64_t heads, int64_t slots, int64_t channels) {
  kvp_view view{};
  view.data = reinterpret_cast<void*>(uintptr_t{4096});  // never read
  view.stride_batch = heads * slots * channels;
  view.stride_head = slots * channels;
  view.stride_slot = channels;
  return view;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != kArguments) {
    std::fprintf(stderr, "cuda_plan takes %d numbers; see bench/cuda_plan.cpp\n", kArguments - 1);
    return 2;
  }
  std::vector<int64_t> numbers;
  for (int i = 1; i < count; ++i) numbers.push_back(std::atoll(arguments[i]));
  const auto number = [&](int i) { return static_cast<int32_t>(numbers[i]); };

  kvp::cuda::Device device{number(0), numbers[1], number(2)};
  kvp_policy policy{};
  policy.struct_size = sizeof policy;
  policy.shape = {number(3), number(4), number(5), number(5),
                  number(6), number(7), 1,         static_cast<uint32_t>(numbers[8]),
                  1e-5f};
  policy.dtype = KVP_BFLOAT16;

  const int64_t slots = numbers[9];
  kvp_layer layer{};
  layer.slots = slots;
  layer.k = layer.v = dense_view(number(4), slots, number(5));
  const std::vector<kvp_layer> layers(numbers[3], layer);
  kvp_args args{};
  args.struct_size = sizeof args;
  args.layer_size = sizeof(kvp_layer);
  args.device = KVP_CUDA;
  args.dtype = KVP_BFLOAT16;
  args.pos_dtype = KVP_INT64;
  args.n_layers = number(3);
  args.n_batch = 1;
  args.n_heads = number(4);
  args.head_dim_k = args.head_dim_v = number(5);
  args.layers = layers.data();
  args.lengths.value = -1;
  args.budget.value = slots / 4;
  args.mode = KVP_PER_HEAD;
  args.order = KVP_STABLE;
  args.policy = &policy;
  args.capacity = slots;

  try {
    kvp::cuda::Plan plan{};
    kvp::cuda::make_plan(KVP_OP_EVICT, args, device, plan);
    const kvp::FragmentLayout& layout = plan.params.weights.layout;
    std::printf(
        "{\"shared_bytes\": %zu, \"chunk_slots\": %d, \"blocks\": %lld, \"stages\": %d, "
        "\"stage_bytes\": %d, \"hidden\": %d, \"workspace_bytes\": %zu}\n",
        plan.shared_bytes, plan.params.chunk_slots, static_cast<long long>(plan.items),
        layout.stages, kvp::kStageBytes, layout.hidden,
        kvp::cuda::plan_workspace_bytes(KVP_OP_EVICT, args));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
