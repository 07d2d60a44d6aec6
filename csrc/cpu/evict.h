// The CPU backend: every operation of the C ABI over rows in ordinary memory. Arguments have
// been validated and args.workspace holds workspace_bytes(op, args).
#ifndef KVP_CPU_EVICT_H
#define KVP_CPU_EVICT_H

#include <cstddef>

#include "kvp/kvp.h"

namespace kvp::cpu {

size_t workspace_bytes(kvp_op op, const kvp_args& args);

void run(kvp_op op, const kvp_args& args);

}  // namespace kvp::cpu

#endif  // KVP_CPU_EVICT_H
