#include "simt/multiprocessor.h"

#include <cstdarg>
#include <cstdio>
#include <exception>

#include "simt/overflow.h"

namespace kvp::simt {
namespace {

constexpr size_t kMessageBytes = 256;

// Stacks that begin at the same offset in their pages would all compete for the same few cache
// lines, so each begins a little lower than the one before.
size_t unused_bytes(int thread) { return static_cast<size_t>(thread) % 61 * 64; }

int threads_in(const dim3& block) { return static_cast<int>(block.x * block.y * block.z); }

}  // namespace

constinit thread_local KernelThread* current = nullptr;

void Multiprocessor::run(Grid& grid) {
  grid_ = &grid;
  size_ = threads_in(grid.shape().block);
  const auto size = static_cast<size_t>(size_);
  stacks_.reserve(size);
  if (threads_.size() < size) threads_ = std::vector<Thread>(size);
  warps_.resize((threads_.size() + kWarpLanes - 1) / kWarpLanes);
  ready_.reserve(size);
  arena_.reserve(grid.shape().shared_bytes);

  const OverflowReporter reporter;
  host_.adopt_this_thread();
  while (const auto block = grid.take_block()) run_block(*block);
  grid_ = nullptr;
}

void Multiprocessor::run_block(uint64_t linear) {
  begin_block(linear);
  Thread* const first = ready_.take();
  current = first;
  Fiber::switch_to(host_, first->fiber);
  current = nullptr;
  for (int i = 0; i < size_; ++i) {
    Fiber& fiber = threads_[i].fiber;
    // Those that an error left waiting have not done this themselves.
    if (abandoned_) fiber.release(grid_->end());
    fiber.forget();
  }
}

void Multiprocessor::begin_block(uint64_t linear) {
  const LaunchShape& shape = grid_->shape();
  coordinates_ = {grid_->block_index(linear), shape.block, shape.grid};
  returned_ = 0;
  barrier_ = {};
  arena_.begin_block(shape.shared_bytes);
  copies_.begin_block(arena_);
  // To TSan blocks on one OS thread are unordered, so what they share must be new to it.
  if (has_tsan() || abandoned_) stacks_.renew(static_cast<size_t>(size_));
  abandoned_ = false;
  if (has_tsan() || sync_ == nullptr || sync_->size() <= threads_.size()) {
    sync_ = std::make_unique<std::vector<TurnstileSync>>(threads_.size() + 1);
  }
  for (int i = 0; i < size_; ++i) begin_thread(i);
  ready_.begin_block(grid_->options().schedule, Random(grid_->options().seed, linear + 1));
  ready_.add_all(threads_.data(), size_);
}

void Multiprocessor::begin_thread(int i) {
  const dim3& block = coordinates_.block_size;
  const auto number = static_cast<unsigned>(i);
  Thread& thread = threads_[i];
  thread.index = {number % block.x, number / block.x % block.y, number / block.x / block.y};
  thread.lane = i % kWarpLanes;
  thread.coordinates = &coordinates_;
  thread.state = Thread::State::kAwake;
  thread.multiprocessor = this;
  thread.warp = &warps_[i / kWarpLanes];
  thread.copies = {};
  thread.fiber.start(stacks_[i], unused_bytes(i), enter, &thread);
  if (thread.lane == 0) {
    const int lanes = size_ - i;
    thread.warp->first = &thread;
    thread.warp->missing = lanes < kWarpLanes ? ~0u << lanes : 0;
    thread.warp->waiting = 0;
  }
}

void Multiprocessor::enter(void* thread) {
  auto& self = *static_cast<Thread*>(thread);
  self.multiprocessor->call_kernel();
  self.multiprocessor->leave(self);
}

void Multiprocessor::call_kernel() {
  char thrown[kMessageBytes];
  try {
    return grid_->call().run(grid_->call().bound);
  } catch (const std::exception& error) {
    std::snprintf(thrown, sizeof(thrown), "%s", error.what());
  } catch (...) {
    std::snprintf(thrown, sizeof(thrown), "no std::exception");
  }
  // Here, since a fiber cannot be left from within a handler.
  fail("exception in the kernel: %s", thrown);
}

void Multiprocessor::leave(Thread& self) {
  Warp& warp = *self.warp;
  if (self.copies.first != CopyQueue::kNone) {
    fail("return with cp.async copies under way that were never waited for");
  }
  if (barrier_.arrived > 0) {
    fail("exited threads at a barrier: return while others wait at %s (%s)", name_of(barrier_.call),
         place(barrier_.site).text);
  }
  if (warp.waiting_for(self.lane) != 0) {
    const int waiting = __builtin_ctz(warp.waiting_for(self.lane));
    fail("exited lane in a mask: return while lane %d waits for this one in %s (%s)", waiting,
         name_of(warp.call[waiting]), place(warp.site[waiting]).text);
  }
  self.state = Thread::State::kReturned;
  warp.missing |= 1u << self.lane;
  const bool last = ++returned_ == size_;
  if (last) check_shared_memory();
  Thread* const next = ready_.take();
  if (next == nullptr && !last) fail_deadlock();
  grid_->end().release();
  current = next;
  Fiber::leave(self.fiber, last ? host_ : next->fiber);
}

void Multiprocessor::check_shared_memory() {
  const SharedArena::Overrun overrun = arena_.find_overrun();
  if (overrun.piece == nullptr) return;
  fail(
      "shared memory overrun: byte %lld past the end of a piece of %lld (%s) was written since "
      "the barrier before",
      static_cast<long long>(overrun.bytes_past_end), static_cast<long long>(overrun.piece->bytes),
      place(overrun.piece->site).text);
}

void Multiprocessor::fail(const char* format, ...) {
  char what[kMessageBytes];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(what, sizeof(what), format, values);
  va_end(values);
  report(what);
  abandoned_ = true;
  grid_->end().release();
  Fiber::leave(this_thread().fiber, host_);
}

void Multiprocessor::fail_deadlock() { fail("deadlock: no thread of the block can go on"); }

// Apart from fail, since nothing that is on the stack there is ever freed.
void Multiprocessor::report(const char* what) {
  const uint3& block = coordinates_.block_index;
  const uint3& thread = current->index;
  char where[kMessageBytes];
  std::snprintf(where, sizeof(where), "\n  by thread (%u, %u, %u) of block (%u, %u, %u)", thread.x,
                thread.y, thread.z, block.x, block.y, block.z);
  grid_->fail(std::string("simt: ") + what + where + describe_threads(*this));
}

}  // namespace kvp::simt
