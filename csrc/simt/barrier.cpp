// Barriers of a block, and the fence.
#include "simt/multiprocessor.h"

namespace kvp::simt {
namespace {

void arrive(Multiprocessor& processor, BlockCall call, Site site) {
  Barrier& barrier = processor.barrier();
  if (processor.returned() > 0) {
    processor.fail("exited threads at a barrier: %s (%s), which %d of %d threads can never reach",
                   name_of(call), place(site).text, processor.returned(), processor.size());
  }
  if (barrier.arrived == 0) {
    barrier.call = call;
    barrier.site = site;
  } else if (!same_place(barrier.site, site)) {
    processor.fail("divergent barriers: %s (%s) while others wait at %s (%s)", name_of(call),
                   place(site).text, name_of(barrier.call), place(barrier.site).text);
  }
  ++barrier.arrived;
}

void complete(Multiprocessor& processor) {
  Barrier& barrier = processor.barrier();
  processor.check_shared_memory();
  barrier.result = barrier.count;
  barrier.arrived = barrier.count = 0;
  processor.barrier_sync().next();
  processor.wake_all();
}

}  // namespace

int sync_block(BlockCall call, bool predicate, Site site) {
  Thread& self = this_thread();
  Multiprocessor& processor = *self.multiprocessor;
  arrive(processor, call, site);
  self.state = Thread::State::kAtBarrier;
  SyncPoint& sync = processor.barrier_sync().now();
  sync.release();
  if (predicate) ++processor.barrier().count;
  if (processor.barrier().arrived == processor.size()) complete(processor);
  processor.wait(self);
  self.state = Thread::State::kAwake;
  sync.acquire();
  return processor.barrier().result;
}

void fence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  // TSan knows no fences: to it, each one follows all that came before.
  static SyncPoint all;
  all.acquire();
  all.release();
}

}  // namespace kvp::simt
