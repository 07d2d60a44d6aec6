// A launch under way: hands its blocks to the OS threads that run them and keeps the first error.
#ifndef KVP_SIMT_GRID_H
#define KVP_SIMT_GRID_H

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "simt/launch.h"
#include "simt/options.h"
#include "simt/sanitizers.h"

namespace kvp::simt {

class Grid {
 public:
  Grid(const LaunchShape& shape, KernelCall call, const Options& options);

  const LaunchShape& shape() const { return shape_; }
  const KernelCall& call() const { return call_; }
  const Options& options() const { return options_; }
  uint64_t blocks() const;

  // The linear index of a block that nobody runs yet; none when all are taken or one has failed.
  std::optional<uint64_t> take_block();
  uint3 block_index(uint64_t linear) const;

  void fail(const std::string& error);
  std::string take_error();

  // Threads of the kernel release it when they end.
  SyncPoint& end() { return end_; }

 private:
  const LaunchShape shape_;
  const KernelCall call_;
  const Options options_;
  std::vector<uint32_t> shuffled_;  // kRandom: the order of blocks
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string error_;
  SyncPoint end_;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_GRID_H
