// Calls that the lanes of a warp make together. The lane that completes a call computes what every
// lane gets from it.
#ifndef KVP_SIMT_WARP_H
#define KVP_SIMT_WARP_H

#include <cstdint>

#include "simt/device.h"
#include "simt/mma.h"
#include "simt/thread.h"

namespace kvp::simt {

// A lane waits in one call at most, so what it brings and gets is kept by lane.
struct Warp {
  Thread* first;     // lane 0
  uint32_t missing;  // lanes that have returned or never were
  uint32_t waiting;

  uint32_t mask[kWarpLanes];
  WarpCall call[kWarpLanes];
  Site site[kWarpLanes];
  uint64_t value[kWarpLanes];
  uint8_t source[kWarpLanes];
  uint64_t result[kWarpLanes];
  MmaOperands mma;

  // The waiting lanes whose masks name this one.
  uint32_t waiting_for(int lane) const;
};

// Fails: the mask lacks the lane itself or names one that is missing.
[[noreturn]] void fail_mask(Thread& self, WarpCall call, uint32_t mask, Site site);

// Whether all lanes of the mask wait with this mask; fails if they wait in different calls.
bool all_wait_together(Thread& self, uint32_t mask);

// Enters a call. True if that completes it: all lanes of the mask wait in it then, and the caller
// computes their results and releases them.
inline bool enter_warp_call(Thread& self, WarpCall call, uint32_t mask, Site site) {
  Warp& warp = *self.warp;
  const uint32_t own = 1u << self.lane;
  if ((mask & own) == 0 || (mask & warp.missing) != 0) [[unlikely]] {
    fail_mask(self, call, mask, site);
  }
  self.state = Thread::State::kInWarpCall;
  warp.mask[self.lane] = mask;
  warp.call[self.lane] = call;
  warp.site[self.lane] = site;
  warp.waiting |= own;
  return (warp.waiting & mask) == mask && all_wait_together(self, mask);
}

void release_lanes(Warp& warp, uint32_t mask);

}  // namespace kvp::simt

#endif  // KVP_SIMT_WARP_H
