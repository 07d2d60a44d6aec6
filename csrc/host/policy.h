// Checks of a policy's geometry.
#ifndef KVP_HOST_POLICY_H
#define KVP_HOST_POLICY_H

#include "kvp/kvp.h"

namespace kvp {

// Throws unless every field is in its documented range.
void validate_policy_shape(const kvp_policy_shape* shape);

}  // namespace kvp

#endif  // KVP_HOST_POLICY_H
