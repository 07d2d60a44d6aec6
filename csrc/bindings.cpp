// The Python module kvp_ext._C over the C ABI.
#include "bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>

#include "owned_args.h"

namespace py = pybind11;
using kvp::check;
using kvp::pointer;

namespace {

using Args = kvp::OwnedArgs;
using Counts = std::tuple<uintptr_t, int64_t, int64_t, int64_t, int64_t>;

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

#define KVP_FIELD(name) args.def_readwrite(#name, &Args::name)
#define KVP_POINTER(name) pointer_field(args, #name, &kvp_args::name)
#define KVP_CONSTANT(name) m.attr(#name) = py::int_(int(KVP_##name))

PYBIND11_MODULE(_C, m) {
  kvp::bind_policies(m);

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
  m.def("devices", [] { return py::str(kvp_devices()).attr("split")(","); });
  m.def("cpu_isas", [] { return py::str(kvp_cpu_isas()).attr("split")(","); });
  m.def("cpu_use_isa", [](const char* isa) { check(kvp_cpu_use_isa(isa)); });

  KVP_CONSTANT(CPU), KVP_CONSTANT(CUDA), KVP_CONSTANT(SIMT), KVP_CONSTANT(DENSE),
      KVP_CONSTANT(FLOAT32);
  KVP_CONSTANT(FLOAT16), KVP_CONSTANT(BFLOAT16), KVP_CONSTANT(INT32), KVP_CONSTANT(INT64);
  KVP_CONSTANT(PER_HEAD), KVP_CONSTANT(UNION), KVP_CONSTANT(MODEL), KVP_CONSTANT(STABLE);
  KVP_CONSTANT(ANY), KVP_CONSTANT(OP_SCORE), KVP_CONSTANT(OP_SELECT), KVP_CONSTANT(OP_COMPACT);
  KVP_CONSTANT(OP_EVICT), KVP_CONSTANT(POLICY_GAINS), KVP_CONSTANT(POLICY_NORMS);
  KVP_CONSTANT(POLICY_SHARED_POSITIONS), KVP_CONSTANT(PACKED_LAYOUT_VERSION);
}
