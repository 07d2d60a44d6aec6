// A flow of control with a stack of its own. Switching saves what a function call must preserve;
// signal masks and the floating-point environment are those of the OS thread.
#ifndef KVP_SIMT_FIBER_H
#define KVP_SIMT_FIBER_H

#include <cstddef>

#include "simt/sanitizers.h"
#include "simt/stacks.h"

#if !defined(KVP_SIMT_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define KVP_SIMT_UCONTEXT  // processors that fiber.cpp has no assembly for; slower
#endif

#ifdef KVP_SIMT_UCONTEXT
#include <ucontext.h>
#else
// Stores the stack pointer at `save` and goes on where `to` was stored.
extern "C" void kvp_simt_switch(void** save, void* to);
#endif

namespace kvp::simt {

class Fiber {
 public:
  using Entry = void (*)(void* argument);

  // The calling OS thread's own flow. Fibers must go back to it before that thread ends.
  void adopt_this_thread();

  // Prepares a call of `entry`, which must never return. `unused` bytes stay free at the stack's
  // top; a multiple of 16.
  void start(const Stack& stack, size_t unused, Entry entry, void* argument);

  // To TSan, what a suspended fiber has done comes before what follows an acquire of the point.
  void release(SyncPoint& point);

  // Frees what sanitizers keep of a fiber that will not run again.
  void forget();

  // Suspends `from`, which must be the one that runs, and goes on with `to`.
  static void switch_to(Fiber& from, Fiber& to) {
    if (has_asan() || has_tsan()) [[unlikely]] {
      switch_announced(from, to);
    } else {
      swap(from, to);
    }
  }

  // The same for a fiber that will not run again.
  [[noreturn]] static void leave(Fiber& from, Fiber& to);

 private:
  struct Entrance;

  static void swap(Fiber& from, Fiber& to) {
#ifdef KVP_SIMT_UCONTEXT
    swapcontext(&from.context_, &to.context_);
#else
    kvp_simt_switch(&from.stack_pointer_, to.stack_pointer_);
#endif
  }

  static void switch_announced(Fiber& from, Fiber& to);
  void announce(Fiber& to, bool leaves);
  void announce_arrival();

#ifdef KVP_SIMT_UCONTEXT
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  // ASan's and TSan's view.
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  void* asan_fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_FIBER_H
