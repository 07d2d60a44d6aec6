#include <mutex>
#include <stdexcept>
#include <string>

#include "simt/options.h"

namespace kvp::simt {
namespace {

std::mutex mutex;
Options chosen;

}  // namespace

void configure(const Options& options) {
  if (options.os_threads < 1 || options.os_threads > kMaxOsThreads) {
    throw std::invalid_argument("os_threads is " + std::to_string(options.os_threads) +
                                ", expected 1 to " + std::to_string(kMaxOsThreads));
  }
  const std::lock_guard lock(mutex);
  chosen = options;
}

Options options() {
  const std::lock_guard lock(mutex);
  return chosen;
}

}  // namespace kvp::simt

// For tests that reach the runtime through a shared library: schedule 0 is ascending, 1 descending,
// 2 random. Returns 1 if an argument makes no sense.
extern "C" __attribute__((visibility("default"))) int kvp_simt_configure(int schedule,
                                                                         uint64_t seed,
                                                                         int os_threads) {
  using kvp::simt::Schedule;
  if (schedule < 0 || schedule > static_cast<int>(Schedule::kRandom)) return 1;
  try {
    kvp::simt::configure({static_cast<Schedule>(schedule), seed, os_threads});
    return 0;
  } catch (const std::invalid_argument&) {
    return 1;
  }
}
