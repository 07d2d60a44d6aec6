// Runs blocks of kernels, one after another, on the OS thread that calls. Each kernel thread is a
// fiber; a fiber that must wait goes on with the next that can run.
//
// On an error the whole block is abandoned: its fibers never run again, and what is on their stacks
// is not destroyed. Kernels own nothing, so nothing is lost.
#ifndef KVP_SIMT_MULTIPROCESSOR_H
#define KVP_SIMT_MULTIPROCESSOR_H

#include <memory>
#include <vector>

#include "simt/async_copies.h"
#include "simt/fiber.h"
#include "simt/grid.h"
#include "simt/ready_list.h"
#include "simt/report.h"
#include "simt/sanitizers.h"
#include "simt/shared_arena.h"
#include "simt/stacks.h"
#include "simt/thread.h"
#include "simt/warp.h"

namespace kvp::simt {

// __syncthreads and its relatives.
struct Barrier {
  int arrived = 0;
  BlockCall call = BlockCall::kSync;  // of those that have arrived
  Site site;
  int count = 0;   // of them, whose predicate holds
  int result = 0;  // of the last time
};

class Multiprocessor {
 public:
  // Blocks of the grid, until none is left. Throws std::bad_alloc.
  void run(Grid& grid);

  // The rest is for the kernel thread that runs.

  // Until another thread wakes it.
  void wait(Thread& self) {
    Thread* const next = ready_.take();
    if (next == &self) return;
    if (next == nullptr) [[unlikely]]
      fail_deadlock();
    current = next;
    Fiber::switch_to(self.fiber, next->fiber);
  }

  void wake_all() { ready_.add_all(threads_.data(), size_); }
  void wake(Thread* first, uint32_t lanes) { ready_.add_lanes(first, lanes); }

  // Ends the launch with an error.
  [[noreturn, gnu::format(printf, 2, 3)]] void fail(const char* format, ...);

  [[noreturn]] void fail_deadlock();

  // Fails if a thread wrote past a piece of shared memory.
  void check_shared_memory();

  int size() const { return size_; }  // of the block
  int returned() const { return returned_; }
  const Thread& thread(int i) const { return threads_[i]; }
  Stack stack_of(const Thread& thread) const { return stacks_[&thread - threads_.data()]; }
  bool can_run(const Thread& thread) const { return ready_.holds(&thread); }

  Barrier& barrier() { return barrier_; }
  const Barrier& barrier() const { return barrier_; }
  SharedArena& arena() { return arena_; }
  AsyncCopies& copies() { return copies_; }

  TurnstileSync& barrier_sync() { return sync_->front(); }
  TurnstileSync& lane_sync(const Thread& lane) { return (*sync_)[1 + (&lane - threads_.data())]; }

 private:
  static void enter(void* thread);
  void run_block(uint64_t linear);
  void begin_block(uint64_t linear);
  void begin_thread(int i);
  void call_kernel();
  [[noreturn]] void leave(Thread& self);
  void report(const char* what);

  Grid* grid_ = nullptr;
  Fiber host_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  ReadyList ready_;

  // The block that runs.
  Coordinates coordinates_{};
  int size_ = 0;
  int returned_ = 0;
  bool abandoned_ = false;
  Barrier barrier_;
  SharedArena arena_;
  AsyncCopies copies_;
  // Of the barrier and of each lane; new for each block, so that blocks do not order each other.
  std::unique_ptr<std::vector<TurnstileSync>> sync_;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_MULTIPROCESSOR_H
