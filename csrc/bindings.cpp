// The Python module kvp_ext._C over the C ABI. Pointers are ints and strides count elements, so
// it depends on no framework; kvp_ext turns tensors into these arguments.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "kvp/kvp.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace {

using Shape = kvp_policy_shape;
using Addresses = std::vector<uintptr_t>;
using Counts = std::tuple<uintptr_t, int64_t, int64_t, int64_t, int64_t>;

void check(kvp_status status) {
  if (status == KVP_OK) return;
  if (status == KVP_INVALID_ARGUMENT) throw py::value_error(kvp_last_error());
  throw std::runtime_error(kvp_last_error());
}

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

std::vector<kvp_policy_tensor> policy_tensors(const Shape& shape) {
  int32_t n = 0;
  check(kvp_policy_tensors(&shape, nullptr, 0, &n));
  std::vector<kvp_policy_tensor> tensors(static_cast<size_t>(n));
  check(kvp_policy_tensors(&shape, tensors.data(), n, &n));
  return tensors;
}

// One pointer per tensor of the policy; the C ABI takes them without a count.
template <typename T>
std::vector<T*> pointers(const Shape& shape, const Addresses& addresses) {
  const size_t n = policy_tensors(shape).size();
  if (addresses.size() != n) {
    throw py::value_error("tensors has " + std::to_string(addresses.size()) +
                          " pointers, expected " + std::to_string(n));
  }
  std::vector<T*> result;
  for (const uintptr_t address : addresses) result.push_back(pointer<T>(address));
  return result;
}

// kvp_args with the layers and the policy that it points to once it is complete.
struct Args : kvp_args {
  Args() : kvp_args{} {}
  std::vector<kvp_layer> own_layers;
  std::optional<kvp_policy> own_policy;

  void set_layers(const std::vector<int64_t>& flat) {
    constexpr size_t kFields = 21;
    static_assert(sizeof(kvp_layer) == kFields * sizeof(int64_t));
    if (flat.size() % kFields != 0) throw py::value_error("expected 21 ints for each layer");
    const auto view = [](const int64_t* f) {
      return kvp_view{reinterpret_cast<void*>(f[0]), f[1], f[2], f[3], f[4]};
    };
    own_layers.clear();
    for (size_t i = 0; i < flat.size(); i += kFields) {
      const int64_t* f = &flat[i];
      own_layers.push_back({f[0], view(f + 1), view(f + 6), view(f + 11), view(f + 16)});
    }
    n_layers = static_cast<int32_t>(own_layers.size());
  }

  const kvp_args* complete() {
    struct_size = sizeof(kvp_args);
    layer_size = sizeof(kvp_layer);
    n_layers = static_cast<int32_t>(own_layers.size());
    layers = own_layers.data();
    policy = own_policy ? &*own_policy : nullptr;
    return this;
  }
};

template <typename T>
void pointer_field(py::class_<Args>& cls, const char* name, T* kvp_args::* field) {
  cls.def_property(
      name, [=](const Args& a) { return reinterpret_cast<uintptr_t>(a.*field); },
      [=](Args& a, uintptr_t address) { a.*field = pointer<T>(address); });
}

void counts_field(py::class_<Args>& cls, const char* name, kvp_counts kvp_args::* field) {
  cls.def_property(
      name,
      [=](const Args& a) {
        const auto& [data, layer, batch, head, value] = a.*field;
        return Counts(reinterpret_cast<uintptr_t>(data), layer, batch, head, value);
      },
      [=](Args& a, const Counts& counts) {
        const auto& [data, layer, batch, head, value] = counts;
        a.*field = {pointer<const int32_t>(data), layer, batch, head, value};
      });
}

void operation(py::module_& m, const char* name, kvp_status (*run)(const kvp_args*)) {
  m.def(name, [=](Args& args) {
    const kvp_args* complete = args.complete();
    check([&] {
      const py::gil_scoped_release release;
      return run(complete);
    }());
  });
}

}  // namespace

#define KVP_SHAPE_FIELD(name) shape.def_readonly(#name, &Shape::name)
#define KVP_FIELD(name) args.def_readwrite(#name, &Args::name)
#define KVP_CONSTANT(name) m.attr(#name) = py::int_(int(KVP_##name))

PYBIND11_MODULE(_C, m) {
  py::class_<Shape> shape(m, "PolicyShape");
  shape.def(
      py::init<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, uint32_t, float>(),
      py::kw_only(), "layers"_a, "kv_heads"_a, "head_dim_k"_a, "head_dim_v"_a, "hidden"_a,
      "position_dim"_a, "position_rows"_a, "flags"_a, "norm_eps"_a);
  KVP_SHAPE_FIELD(layers), KVP_SHAPE_FIELD(kv_heads), KVP_SHAPE_FIELD(head_dim_k);
  KVP_SHAPE_FIELD(head_dim_v), KVP_SHAPE_FIELD(hidden), KVP_SHAPE_FIELD(position_dim);
  KVP_SHAPE_FIELD(position_rows), KVP_SHAPE_FIELD(flags), KVP_SHAPE_FIELD(norm_eps);
  py::class_<kvp_policy>(m, "PolicyView")
      .def(py::init([](const Shape& policy, uintptr_t weights, uintptr_t positions) {
             return kvp_policy{sizeof(kvp_policy), policy, pointer<const float>(weights),
                               pointer<const float>(positions)};
           }),
           "shape"_a, "weights_ptr"_a, "positions_ptr"_a);

  py::class_<Args> args(m, "Args");
  args.def(py::init<>()).def("set_layers", &Args::set_layers);
  args.def_readwrite("policy", &Args::own_policy);
  KVP_FIELD(device), KVP_FIELD(addressing), KVP_FIELD(threads), KVP_FIELD(dtype);
  KVP_FIELD(pos_dtype), KVP_FIELD(n_layers), KVP_FIELD(n_batch), KVP_FIELD(n_heads);
  KVP_FIELD(head_dim_k), KVP_FIELD(head_dim_v), KVP_FIELD(mode), KVP_FIELD(order);
  KVP_FIELD(sinks), KVP_FIELD(recent), KVP_FIELD(capacity), KVP_FIELD(workspace_bytes);
  pointer_field(args, "stream", &kvp_args::stream);
  pointer_field(args, "new_lengths", &kvp_args::new_lengths);
  pointer_field(args, "new_pos", &kvp_args::new_pos);
  pointer_field(args, "kept", &kvp_args::kept);
  pointer_field(args, "changed", &kvp_args::changed);
  pointer_field(args, "workspace", &kvp_args::workspace);
  counts_field(args, "lengths", &kvp_args::lengths);
  counts_field(args, "budget", &kvp_args::budget);

  m.def("policy_tensors", [](const Shape& policy) {
    std::vector<std::tuple<std::string, int32_t, int32_t>> list;
    for (const auto& [name, rows, cols] : policy_tensors(policy))
      list.emplace_back(name, rows, cols);
    return list;
  });
  m.def("policy_block_floats", [](const Shape& policy) {
    int64_t floats = 0;
    check(kvp_policy_block_floats(&policy, &floats));
    return floats;
  });
  m.def("policy_pack", [](const Shape& policy, const Addresses& tensors, uintptr_t block) {
    const auto from = pointers<const float>(policy, tensors);
    check(kvp_policy_pack(&policy, from.data(), pointer<float>(block)));
  });
  m.def("policy_unpack", [](const Shape& policy, uintptr_t block, const Addresses& tensors) {
    const auto to = pointers<float>(policy, tensors);
    check(kvp_policy_unpack(&policy, pointer<const float>(block), to.data()));
  });

  m.def("validate", [](int op, Args& a) { check(kvp_validate(kvp_op(op), a.complete())); });
  m.def("workspace_bytes", [](int op, Args& a) {
    size_t bytes = 0;
    check(kvp_workspace_bytes(kvp_op(op), a.complete(), &bytes));
    return bytes;
  });
  operation(m, "score", kvp_score);
  operation(m, "select", kvp_select);
  operation(m, "compact", kvp_compact);
  operation(m, "evict", kvp_evict);
  m.def("cpu_isas", [] { return py::str(kvp_cpu_isas()).attr("split")(","); });
  m.def("cpu_use_isa", [](std::optional<std::string> isa) {
    check(kvp_cpu_use_isa(isa ? isa->c_str() : nullptr));
  });

  KVP_CONSTANT(CPU), KVP_CONSTANT(CUDA), KVP_CONSTANT(DENSE), KVP_CONSTANT(FLOAT32);
  KVP_CONSTANT(FLOAT16), KVP_CONSTANT(BFLOAT16), KVP_CONSTANT(INT32), KVP_CONSTANT(INT64);
  KVP_CONSTANT(PER_HEAD), KVP_CONSTANT(UNION), KVP_CONSTANT(MODEL), KVP_CONSTANT(STABLE);
  KVP_CONSTANT(ANY), KVP_CONSTANT(OP_SCORE), KVP_CONSTANT(OP_SELECT), KVP_CONSTANT(OP_COMPACT);
  KVP_CONSTANT(OP_EVICT), KVP_CONSTANT(POLICY_GAINS), KVP_CONSTANT(POLICY_NORMS);
  KVP_CONSTANT(POLICY_SHARED_POSITIONS), KVP_CONSTANT(PACKED_LAYOUT_VERSION);
}
