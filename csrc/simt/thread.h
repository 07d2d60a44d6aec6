// A kernel thread as the runtime sees it.
#ifndef KVP_SIMT_THREAD_H
#define KVP_SIMT_THREAD_H

#include <cstdint>

#include "simt/device.h"
#include "simt/fiber.h"

namespace kvp::simt {

class Multiprocessor;
struct Warp;

// The cp.async copies that a thread has under way, oldest first.
struct CopyQueue {
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  uint32_t first = kNone;
  uint32_t last = kNone;
  uint32_t group = 0;  // groups committed so far, and the number of the one that is open
};

struct Thread : KernelThread {
  // What it does when it neither runs nor can run.
  enum class State : uint8_t { kAwake, kAtBarrier, kInWarpCall, kReturned };

  State state;
  Multiprocessor* multiprocessor;
  Warp* warp;
  Fiber fiber;
  CopyQueue copies;
};

inline Thread& this_thread() { return *static_cast<Thread*>(current); }

}  // namespace kvp::simt

#endif  // KVP_SIMT_THREAD_H
