// What bindings from other languages need around the C ABI: containers that own what its structs
// point to.
#ifndef KVP_OWNED_ARGS_H
#define KVP_OWNED_ARGS_H

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "kvp/kvp.h"

namespace kvp {

// kvp_args with the layers and the policy that it points to.
struct OwnedArgs : kvp_args {
  OwnedArgs() : kvp_args{} {}

  std::vector<kvp_layer> own_layers;
  std::optional<kvp_policy> own_policy;

  // kIntsPerLayer numbers for each layer: the fields of kvp_layer in their order.
  static constexpr size_t kIntsPerLayer = 21;

  void set_layers(const std::vector<int64_t>& flat) {
    static_assert(sizeof(kvp_layer) == kIntsPerLayer * sizeof(int64_t));
    if (flat.size() % kIntsPerLayer != 0) {
      throw std::invalid_argument("layers has " + std::to_string(flat.size()) +
                                  " ints, expected a multiple of 21");
    }
    const auto view = [](const int64_t* f) {
      return kvp_view{reinterpret_cast<void*>(f[0]), f[1], f[2], f[3], f[4]};
    };
    own_layers.clear();
    for (size_t i = 0; i < flat.size(); i += kIntsPerLayer) {
      const int64_t* f = &flat[i];
      own_layers.push_back({f[0], view(f + 1), view(f + 6), view(f + 11), view(f + 16)});
    }
    n_layers = static_cast<int32_t>(own_layers.size());
  }

  // The pointers are set at the last moment, so copies never point into their original.
  const kvp_args* complete() {
    struct_size = sizeof(kvp_args);
    layer_size = sizeof(kvp_layer);
    n_layers = static_cast<int32_t>(own_layers.size());
    layers = own_layers.data();
    policy = own_policy ? &*own_policy : nullptr;
    return this;
  }
};

// (name, rows, cols) of every weight tensor; `check` throws on a failed status.
template <typename Check>
std::vector<std::tuple<std::string, int32_t, int32_t>> policy_tensors(const kvp_policy_shape& shape,
                                                                      Check&& check) {
  int32_t n = 0;
  check(kvp_policy_tensors(&shape, nullptr, 0, &n));
  std::vector<kvp_policy_tensor> tensors(static_cast<size_t>(n));
  check(kvp_policy_tensors(&shape, tensors.data(), n, &n));
  std::vector<std::tuple<std::string, int32_t, int32_t>> list;
  for (const auto& [name, rows, cols] : tensors) list.emplace_back(name, rows, cols);
  return list;
}

}  // namespace kvp

#endif  // KVP_OWNED_ARGS_H
