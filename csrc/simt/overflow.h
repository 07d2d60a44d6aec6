// While it exists, a kernel thread on this OS thread that needs more than its stack is named on
// stderr before the program dies of it.
#ifndef KVP_SIMT_OVERFLOW_H
#define KVP_SIMT_OVERFLOW_H

#include <csignal>
#include <cstddef>
#include <memory>

namespace kvp::simt {

class OverflowReporter {
 public:
  OverflowReporter();
  OverflowReporter(const OverflowReporter&) = delete;
  OverflowReporter& operator=(const OverflowReporter&) = delete;
  ~OverflowReporter();

 private:
  std::unique_ptr<std::byte[]> signal_stack_;  // null where the OS thread has one
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_OVERFLOW_H
