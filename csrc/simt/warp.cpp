#include "simt/warp.h"

#include <bit>

#include "simt/multiprocessor.h"

namespace kvp::simt {
namespace {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

template <class Body>
void for_each_lane(uint32_t lanes, Body body) {
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < kWarpLanes; ++lane) body(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) body(std::countr_zero(lanes));
  }
}

[[noreturn]] void fail_calls(Thread& self, int other) {
  const Warp& warp = *self.warp;
  self.multiprocessor->fail(
      "different calls by lanes of one mask: lane %d calls %s (%s), lane %d %s (%s)", self.lane,
      name_of(warp.call[self.lane]), place(warp.site[self.lane]).text, other,
      name_of(warp.call[other]), place(warp.site[other]).text);
}

[[noreturn]] void fail_source(Thread& self, WarpCall call, uint32_t mask, int source, Site site) {
  self.multiprocessor->fail(
      "shuffle from a lane outside the mask: lane %d calls %s (%s) with mask 0x%08x to read lane "
      "%d",
      self.lane, name_of(call), place(site).text, mask, source);
}

uint32_t ballot(const Warp& warp, uint32_t mask) {
  uint32_t lanes = 0;
  for_each_lane(mask, [&](int lane) { lanes |= uint32_t{warp.value[lane] != 0} << lane; });
  return lanes;
}

template <class Combine>
uint64_t reduce(const Warp& warp, uint32_t mask, Combine combine) {
  auto sum = static_cast<int64_t>(warp.value[std::countr_zero(mask)]);
  for_each_lane(mask & (mask - 1),
                [&](int lane) { sum = combine(sum, static_cast<int64_t>(warp.value[lane])); });
  return static_cast<uint64_t>(sum);
}

void match(Warp& warp, uint32_t mask) {
  for (uint32_t left = mask; left != 0;) {
    const uint64_t value = warp.value[std::countr_zero(left)];
    uint32_t equal = 0;
    for_each_lane(left, [&](int lane) { equal |= uint32_t{warp.value[lane] == value} << lane; });
    for_each_lane(equal, [&](int lane) { warp.result[lane] = equal; });
    left &= ~equal;
  }
}

void compute_results(Warp& warp, WarpCall call, uint32_t mask) {
  const auto give_all = [&](uint64_t result) {
    for_each_lane(mask, [&](int lane) { warp.result[lane] = result; });
  };
  switch (call) {
    case WarpCall::kSync:
    case WarpCall::kMma:
      return;
    case WarpCall::kShuffle:
    case WarpCall::kShuffleXor:
    case WarpCall::kShuffleUp:
    case WarpCall::kShuffleDown:
      return for_each_lane(mask,
                           [&](int lane) { warp.result[lane] = warp.value[warp.source[lane]]; });
    case WarpCall::kBallot:
    case WarpCall::kAny:
    case WarpCall::kAll:
      return give_all(ballot(warp, mask));
    case WarpCall::kMatchAny:
      return match(warp, mask);
    case WarpCall::kReduceAdd:
      return give_all(reduce(warp, mask, [](int64_t a, int64_t b) { return a + b; }));
    case WarpCall::kReduceMin:
      return give_all(reduce(warp, mask, [](int64_t a, int64_t b) { return a < b ? a : b; }));
    case WarpCall::kReduceMax:
      return give_all(reduce(warp, mask, [](int64_t a, int64_t b) { return a > b ? a : b; }));
  }
}

bool is_shuffle(WarpCall call) {
  return call >= WarpCall::kShuffle && call <= WarpCall::kShuffleDown;
}

}  // namespace

uint32_t Warp::waiting_for(int lane) const {
  uint32_t lanes = 0;
  for_each_lane(waiting, [&](int other) { lanes |= (mask[other] >> lane & 1) << other; });
  return lanes;
}

void fail_mask(Thread& self, WarpCall call, uint32_t mask, Site site) {
  const Warp& warp = *self.warp;
  Multiprocessor& processor = *self.multiprocessor;
  if ((mask >> self.lane & 1) == 0) {
    processor.fail("mask without its own lane: lane %d calls %s (%s) with mask 0x%08x", self.lane,
                   name_of(call), place(site).text, mask);
  }
  const int lane = std::countr_zero(mask & warp.missing);
  const bool existed = &warp.first[lane] < &processor.thread(0) + processor.size();
  processor.fail("%s lane in a mask: %s (%s) with mask 0x%08x, which names lane %d",
                 existed ? "exited" : "absent", name_of(call), place(site).text, mask, lane);
}

bool all_wait_together(Thread& self, uint32_t mask) {
  const Warp& warp = *self.warp;
  const WarpCall call = warp.call[self.lane];
  bool same_mask = true;
  int other = self.lane;
  for_each_lane(mask, [&](int lane) {
    same_mask &= warp.mask[lane] == mask;
    if (warp.call[lane] != call) other = lane;
  });
  if (!same_mask) return false;  // a lane that waits with another mask will come here later
  if (other != self.lane) fail_calls(self, other);
  return true;
}

void release_lanes(Warp& warp, uint32_t mask) {
  warp.waiting &= ~mask;
  warp.first->multiprocessor->wake(warp.first, mask);
}

uint64_t join_warp(WarpCall call, uint32_t mask, uint64_t value, int source, Site site) {
  Thread& self = this_thread();
  Warp& warp = *self.warp;
  Multiprocessor& processor = *self.multiprocessor;
  warp.value[self.lane] = value;
  warp.source[self.lane] = static_cast<uint8_t>(source);

  // The device documents that only __syncwarp orders memory. Groups of lanes are told apart by
  // their first lanes.
  SyncPoint* sync = nullptr;
  if (call == WarpCall::kSync && has_tsan()) {
    sync = &processor.lane_sync(warp.first[std::countr_zero(mask)]).now();
    sync->release();
  }
  const bool completes = enter_warp_call(self, call, mask, site);
  if (is_shuffle(call) && (source < 0 || source >= kWarpLanes || (mask >> source & 1) == 0)) {
    fail_source(self, call, mask, source, site);
  }
  if (completes) {
    compute_results(warp, call, mask);
    if (sync != nullptr) processor.lane_sync(warp.first[std::countr_zero(mask)]).next();
    release_lanes(warp, mask);
  }
  processor.wait(self);
  self.state = Thread::State::kAwake;
  if (sync != nullptr) sync->acquire();
  return warp.result[self.lane];
}

}  // namespace kvp::simt
