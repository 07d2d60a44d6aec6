#include "simt/overflow.h"

#include <unistd.h>

#include <cstdio>

#include "simt/multiprocessor.h"

namespace kvp::simt {
namespace {

constexpr size_t kSignalStackBytes = size_t{64} << 10;

struct sigaction previous_action;

bool in_guard_page(const void* address) {
  if (current == nullptr) return false;
  const std::byte* const bottom = this_thread().multiprocessor->stack_of(this_thread()).bottom;
  const auto* const at = static_cast<const std::byte*>(address);
  return at < bottom && at >= bottom - page_bytes();
}

// The stack is exhausted, nothing else is broken, so formatting into a buffer is safe enough.
void report_overflow() {
  const uint3& thread = current->index;
  const uint3& block = current->coordinates->block_index;
  char message[256];
  const int length =
      std::snprintf(message, sizeof(message),
                    "simt: stack overflow: more than %zu bytes\n  by thread (%u, %u, %u) of block "
                    "(%u, %u, %u)\n",
                    kStackBytes, thread.x, thread.y, thread.z, block.x, block.y, block.z);
  static_cast<void>(!write(STDERR_FILENO, message, static_cast<size_t>(length)));
}

// The faulting instruction is executed again when this returns, and whoever handled faults before
// sees it then.
void on_fault(int, siginfo_t* info, void*) {
  if (in_guard_page(info->si_addr)) report_overflow();
  sigaction(SIGSEGV, &previous_action, nullptr);
}

void install_handler() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_action);
}

}  // namespace

OverflowReporter::OverflowReporter() {
  [[maybe_unused]] static const bool installed = (install_handler(), true);
  stack_t existing;
  sigaltstack(nullptr, &existing);
  if ((existing.ss_flags & SS_DISABLE) == 0) return;
  signal_stack_ = std::make_unique<std::byte[]>(kSignalStackBytes);
  stack_t stack{};
  stack.ss_sp = signal_stack_.get();
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, nullptr);
}

OverflowReporter::~OverflowReporter() {
  if (signal_stack_ == nullptr) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

}  // namespace kvp::simt
