#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "owned_args.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace kvp {
namespace {

using Shape = kvp_policy_shape;
using Addresses = std::vector<uintptr_t>;

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

}  // namespace

#define KVP_SHAPE_FIELD(name) shape.def_readonly(#name, &Shape::name)

void bind_policies(py::module_& m) {
  py::class_<Shape> shape(m, "PolicyShape");
  shape.def(
      py::init<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, uint32_t, float>(),
      py::kw_only(), "layers"_a, "kv_heads"_a, "head_dim_k"_a, "head_dim_v"_a, "hidden"_a,
      "position_dim"_a, "position_rows"_a, "flags"_a, "norm_eps"_a);
  KVP_SHAPE_FIELD(layers), KVP_SHAPE_FIELD(kv_heads), KVP_SHAPE_FIELD(head_dim_k);
  KVP_SHAPE_FIELD(head_dim_v), KVP_SHAPE_FIELD(hidden), KVP_SHAPE_FIELD(position_dim);
  KVP_SHAPE_FIELD(position_rows), KVP_SHAPE_FIELD(flags), KVP_SHAPE_FIELD(norm_eps);
  py::class_<kvp_policy>(m, "PolicyView")
      .def(py::init([](const Shape& policy, int dtype, uintptr_t weights, uintptr_t positions) {
             return kvp_policy{sizeof(kvp_policy), policy, dtype, pointer<const void>(weights),
                               pointer<const void>(positions)};
           }),
           "shape"_a, "dtype"_a, "weights_ptr"_a, "positions_ptr"_a);

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
  m.def("policy_fragment_bytes", [](const Shape& policy) {
    int64_t block = 0, position_row = 0;
    check(kvp_policy_fragment_bytes(&policy, &block, &position_row));
    return std::pair(block, position_row);
  });
  m.def("policy_fragments",
        [](const Shape& policy, int dtype, uintptr_t block, uintptr_t fragments) {
          check(kvp_policy_fragments(&policy, dtype, pointer<const float>(block),
                                     pointer<void>(fragments)));
        });
  m.def("policy_position_fragments",
        [](const Shape& policy, int dtype, uintptr_t positions, int64_t rows, uintptr_t fragments) {
          check(kvp_policy_position_fragments(&policy, dtype, pointer<const float>(positions), rows,
                                              pointer<void>(fragments)));
        });
}

}  // namespace kvp
