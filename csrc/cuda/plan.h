// From the caller's arguments to a launch: work items, the workspace, the choice of sizes. Host
// code without CUDA calls.
#ifndef KVP_CUDA_PLAN_H
#define KVP_CUDA_PLAN_H

#include <cstddef>
#include <cstdint>

#include "cuda/params.h"

namespace kvp::cuda {

// What of the device, and of the kernels built for it, the plan depends on.
struct Device {
  int multiprocessors;
  int64_t shared_bytes;  // that a block may ask for
  int architecture;      // that the scoring kernel was compiled for
};

struct Plan {
  Params params;
  int64_t items;        // blocks of the first launch
  int64_t rows;         // blocks of a launch with one per row
  size_t shared_bytes;  // of a block
  std::byte* tickets;   // to be zero before the launch
  size_t ticket_bytes;
};

// Throws Error for what the kernels do not support.
void make_plan(kvp_op op, const kvp_args& args, const Device& device, Plan& plan);

size_t plan_workspace_bytes(kvp_op op, const kvp_args& args);

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PLAN_H
