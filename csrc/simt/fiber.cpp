#include "simt/fiber.h"

#include <cstdint>
#include <cstdlib>

#include "simt/sanitizers.h"

namespace kvp::simt {
namespace {

// Tells TSan that a switch orders nothing.
constexpr unsigned kTsanNoSync = 1;

// The fiber that was left last: ASan names the bounds of its stack only afterwards.
thread_local Fiber* left = nullptr;

}  // namespace

// Where a fiber begins.
struct Fiber::Entrance {
  [[noreturn]] static void enter(Fiber* fiber) {
    fiber->announce_arrival();
    fiber->entry_(fiber->argument_);
    std::abort();  // an entry never returns
  }

  // makecontext passes integers only.
  [[noreturn]] static void enter_halves(unsigned high, unsigned low) {
    const auto address = static_cast<uint64_t>(high) << 32 | low;
    enter(reinterpret_cast<Fiber*>(static_cast<uintptr_t>(address)));
  }
};

void Fiber::announce(Fiber& to, bool leaves) {
  if (has_tsan()) __tsan_switch_to_fiber(to.tsan_fiber_, kTsanNoSync);
  if (!has_asan()) return;
  left = this;
  __sanitizer_start_switch_fiber(leaves ? nullptr : &asan_fake_stack_, to.stack_bottom_,
                                 to.stack_bytes_);
}

void Fiber::announce_arrival() {
  if (!has_asan()) return;
  __sanitizer_finish_switch_fiber(asan_fake_stack_, &left->stack_bottom_, &left->stack_bytes_);
}

void Fiber::adopt_this_thread() {
  if (has_tsan()) tsan_fiber_ = __tsan_get_current_fiber();
}

void Fiber::release(SyncPoint& point) {
  if (!has_tsan()) return;
  void* const running = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, kTsanNoSync);
  point.release();
  __tsan_switch_to_fiber(running, kTsanNoSync);
}

void Fiber::forget() {
  if (has_tsan() && tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
  tsan_fiber_ = nullptr;
}

#ifndef KVP_SIMT_UCONTEXT

// At a suspended fiber's stack pointer lie the registers that calls preserve and the address where
// it goes on. For a new fiber that is kvp_simt_begin, and what it calls is in two of the registers.
extern "C" void kvp_simt_begin();

#if defined(__x86_64__)

namespace {

struct Frame {
  void* r15;
  void* r14;
  void* r13;
  void* call;      // r12
  void* argument;  // rbx
  void* rbp;
  void* resume;
  void* unused[2];
};
static_assert(sizeof(Frame) % 16 == 8);  // kvp_simt_begin then calls with an aligned stack

}  // namespace

asm(R"(
  .text
  .p2align 4
  .hidden kvp_simt_switch
  .globl kvp_simt_switch
  .type kvp_simt_switch, @function
kvp_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size kvp_simt_switch, .-kvp_simt_switch

  .p2align 4
  .hidden kvp_simt_begin
  .globl kvp_simt_begin
  .type kvp_simt_begin, @function
kvp_simt_begin:
  .cfi_startproc
  .cfi_undefined rip
  movq %rbx, %rdi
  call *%r12
  ud2
  .cfi_endproc
  .size kvp_simt_begin, .-kvp_simt_begin
)");

#elif defined(__aarch64__)

namespace {

struct Frame {
  void* argument;  // x19
  void* call;      // x20
  void* x21_to_x29[9];
  void* resume;  // x30
  double d8_to_d15[8];
};
static_assert(sizeof(Frame) == 160);

}  // namespace

asm(R"(
  .text
  .p2align 4
  .hidden kvp_simt_switch
  .globl kvp_simt_switch
  .type kvp_simt_switch, %function
kvp_simt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size kvp_simt_switch, .-kvp_simt_switch

  .p2align 4
  .hidden kvp_simt_begin
  .globl kvp_simt_begin
  .type kvp_simt_begin, %function
kvp_simt_begin:
  .cfi_startproc
  .cfi_undefined x30
  mov x0, x19
  blr x20
  brk #0
  .cfi_endproc
  .size kvp_simt_begin, .-kvp_simt_begin
)");

#endif
#endif  // KVP_SIMT_UCONTEXT

void Fiber::start(const Stack& stack, size_t unused, Entry entry, void* argument) {
  entry_ = entry;
  argument_ = argument;
  stack_bottom_ = stack.bottom;
  stack_bytes_ = kStackBytes;
  asan_fake_stack_ = nullptr;
  if (has_tsan()) tsan_fiber_ = __tsan_create_fiber(0);
#ifdef KVP_SIMT_UCONTEXT
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack.bottom;
  context_.uc_stack.ss_size = kStackBytes - unused;
  context_.uc_link = nullptr;
  const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(this));
  makecontext(&context_, reinterpret_cast<void (*)()>(&Entrance::enter_halves), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
#else
  auto* frame = reinterpret_cast<Frame*>(stack.top() - unused) - 1;
  *frame = {};
  frame->call = reinterpret_cast<void*>(&Entrance::enter);
  frame->argument = this;
  frame->resume = reinterpret_cast<void*>(&kvp_simt_begin);
  stack_pointer_ = frame;
#endif
}

void Fiber::switch_announced(Fiber& from, Fiber& to) {
  from.announce(to, false);
  swap(from, to);
  from.announce_arrival();
}

void Fiber::leave(Fiber& from, Fiber& to) {
  from.announce(to, true);
  swap(from, to);
  std::abort();  // nobody goes back to a fiber that was left
}

}  // namespace kvp::simt
