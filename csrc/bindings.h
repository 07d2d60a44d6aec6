// What the files of the Python module kvp_ext._C share. Pointers are ints and strides count
// elements, so the module depends on no framework; kvp_ext turns tensors into these arguments.
#ifndef KVP_BINDINGS_H
#define KVP_BINDINGS_H

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>

#include "kvp/kvp.h"

namespace kvp {

inline void check(kvp_status status) {
  if (status == KVP_OK) return;
  if (status == KVP_INVALID_ARGUMENT) throw pybind11::value_error(kvp_last_error());
  throw std::runtime_error(kvp_last_error());
}

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Shapes, views and packing of policies.
void bind_policies(pybind11::module_& m);

}  // namespace kvp

#endif  // KVP_BINDINGS_H
