// The CUDA backend as dispatch sees it. Work is enqueued on args.stream of the current device;
// nothing is allocated and nothing waits.
#ifndef KVP_CUDA_LAUNCH_H
#define KVP_CUDA_LAUNCH_H

#include <cstddef>

#include "kvp/kvp.h"

namespace kvp::cuda {

size_t workspace_bytes(kvp_op op, const kvp_args& args);
void run(kvp_op op, const kvp_args& args);

}  // namespace kvp::cuda

#endif  // KVP_CUDA_LAUNCH_H
