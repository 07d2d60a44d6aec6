// The one place that checks arguments, for every backend and for Python and C alike.
#ifndef KVP_HOST_VALIDATE_H
#define KVP_HOST_VALIDATE_H

#include "kvp/kvp.h"

namespace kvp {

// Struct sizes, ranges, dtypes, pointers, strides and the policy's geometry. Reads nothing but
// the structs, so it also serves the size query.
void validate_geometry(kvp_op op, const kvp_args& args);

// What the host can read of lengths, budget and kept, and whether the outputs are large enough.
void validate_counts(kvp_op op, const kvp_args& args);

// That no memory which the operation writes is shared with any other argument.
void validate_memory(kvp_op op, const kvp_args& args);

}  // namespace kvp

#endif  // KVP_HOST_VALIDATE_H
