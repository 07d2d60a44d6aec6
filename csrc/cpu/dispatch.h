// Which of the available instruction sets the CPU backend uses.
#ifndef KVP_CPU_DISPATCH_H
#define KVP_CPU_DISPATCH_H

#include "cpu/score.h"

namespace kvp::cpu {

const Isa& active_isa();

}  // namespace kvp::cpu

#endif  // KVP_CPU_DISPATCH_H
