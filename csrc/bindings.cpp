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
#include "owned_args.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace {

using Args = kvp::OwnedArgs;
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

// One pointer per tensor of the policy; the C ABI takes them without a count.
template <typename T>
std::vector<T*> pointers(const Shape& shape, const Addresses& addresses) {
  const size_t n = kvp::policy_tensors(shape, check).size();
  if (addresses.size() != n) {
    throw py::value_error("tensors has " + std::to_string(addresses.size()) +
                          " pointers, expected " + std::to_string(n));
  }
  std::vector<T*> result;
  for (const uintptr_t address : addresses) result.push_back(pointer<T>(address));
  return result;
}

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
#define KVP_POINTER(name) pointer_field(args, #name, &kvp_args::name)
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
  KVP_POINTER(stream), KVP_POINTER(new_lengths), KVP_POINTER(new_pos), KVP_POINTER(kept);
  KVP_POINTER(changed), KVP_POINTER(workspace);
  counts_field(args, "lengths", &kvp_args::lengths);
  counts_field(args, "budget", &kvp_args::budget);

  m.def("policy_tensors", [](const Shape& policy) { return kvp::policy_tensors(policy, check); });
  m.def("policy_block_floats", [](const Shape& policy) {
    int64_t floats = 0;
    check(kvp_policy_block_floats(&policy, &floats));
    return floats;
  });
  m.def("policy_pack", [](const Shape& policy, const Addresses& tensors, uintptr_t block) {
    check(kvp_policy_pack(&policy, pointers<const float>(policy, tensors).data(),
                          pointer<float>(block)));
  });
  m.def("policy_unpack", [](const Shape& policy, uintptr_t block, const Addresses& tensors) {
    check(kvp_policy_unpack(&policy, pointer<const float>(block),
                            pointers<float>(policy, tensors).data()));
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
  m.def("cpu_use_isa", [](const char* isa) { check(kvp_cpu_use_isa(isa)); });

  KVP_CONSTANT(CPU), KVP_CONSTANT(CUDA), KVP_CONSTANT(DENSE), KVP_CONSTANT(FLOAT32);
  KVP_CONSTANT(FLOAT16), KVP_CONSTANT(BFLOAT16), KVP_CONSTANT(INT32), KVP_CONSTANT(INT64);
  KVP_CONSTANT(PER_HEAD), KVP_CONSTANT(UNION), KVP_CONSTANT(MODEL), KVP_CONSTANT(STABLE);
  KVP_CONSTANT(ANY), KVP_CONSTANT(OP_SCORE), KVP_CONSTANT(OP_SELECT), KVP_CONSTANT(OP_COMPACT);
  KVP_CONSTANT(OP_EVICT), KVP_CONSTANT(POLICY_GAINS), KVP_CONSTANT(POLICY_NORMS);
  KVP_CONSTANT(POLICY_SHARED_POSITIONS), KVP_CONSTANT(PACKED_LAYOUT_VERSION);
}
