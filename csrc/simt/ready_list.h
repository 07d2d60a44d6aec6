// The threads of a block that can run, and which of them is next.
//
// In the ascending and descending schedules a warp goes on until it must wait for others, which
// tears warps as far apart as they can come. It is also the fastest: a warp's stacks stay cached.
#ifndef KVP_SIMT_READY_LIST_H
#define KVP_SIMT_READY_LIST_H

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "simt/device.h"
#include "simt/options.h"
#include "simt/random.h"
#include "simt/thread.h"

namespace kvp::simt {

class ReadyList {
 public:
  void reserve(size_t threads) { list_.resize(std::max(list_.size(), threads)); }

  void begin_block(Schedule schedule, Random random) {
    schedule_ = schedule;
    random_ = random;
    count_ = 0;
  }

  // Consecutive threads, all of a block.
  void add_all(Thread* first, int count) {
    if (schedule_ == Schedule::kDescending) {
      for (int i = 0; i < count; ++i) add(first + i);
    } else {
      for (int i = count - 1; i >= 0; --i) add(first + i);
    }
  }

  // Lanes of a warp.
  void add_lanes(Thread* first, uint32_t lanes) {
    if (lanes == 0xFFFFFFFFu) return add_all(first, kWarpLanes);
    if (schedule_ == Schedule::kDescending) {
      for (int lane = 0; lane < kWarpLanes; ++lane) {
        if (lanes >> lane & 1) add(first + lane);
      }
    } else {
      for (int lane = kWarpLanes - 1; lane >= 0; --lane) {
        if (lanes >> lane & 1) add(first + lane);
      }
    }
  }

  // Null if there is none.
  Thread* take() {
    if (count_ == 0) return nullptr;
    if (schedule_ == Schedule::kRandom) {
      std::swap(list_[count_ - 1], list_[random_.below(count_)]);
    }
    return list_[--count_];
  }

  bool holds(const Thread* thread) const {
    return std::find(list_.data(), list_.data() + count_, thread) != list_.data() + count_;
  }

 private:
  void add(Thread* thread) { list_[count_++] = thread; }

  std::vector<Thread*> list_;  // the next one last
  uint32_t count_ = 0;
  Schedule schedule_ = Schedule::kAscending;
  Random random_;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_READY_LIST_H
