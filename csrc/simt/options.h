// How kernels are run. Every choice is legal on a device, so a kernel's results must not differ.
#ifndef KVP_SIMT_OPTIONS_H
#define KVP_SIMT_OPTIONS_H

#include <cstdint>

namespace kvp::simt {

enum class Schedule {
  kAscending,   // always the first thread that can run; blocks in order
  kDescending,  // always the last one; blocks from the last
  kRandom,      // any thread, any order of blocks, as the seed will have it
};

constexpr int kMaxOsThreads = 64;

struct Options {
  Schedule schedule = Schedule::kAscending;
  uint64_t seed = 0;
  int os_threads = 1;  // that share the blocks of a launch
};

// For launches from now on. Throws std::invalid_argument unless 1 <= os_threads <= kMaxOsThreads.
void configure(const Options& options);
Options options();

}  // namespace kvp::simt

#endif  // KVP_SIMT_OPTIONS_H
