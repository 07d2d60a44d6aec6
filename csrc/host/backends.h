// The backends of this build, by device.
#ifndef KVP_HOST_BACKENDS_H
#define KVP_HOST_BACKENDS_H

#include <cstddef>

#include "kvp/kvp.h"

namespace kvp {

// Both functions take arguments whose geometry was checked, `run` all others too.
struct Backend {
  size_t (*workspace_bytes)(kvp_op op, const kvp_args& args);
  void (*run)(kvp_op op, const kvp_args& args);
};

// Throws Error for a device that this build does not have.
const Backend& backend_for(int32_t device);

}  // namespace kvp

#endif  // KVP_HOST_BACKENDS_H
