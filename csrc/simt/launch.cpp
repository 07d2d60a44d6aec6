#include "simt/launch.h"

#include <algorithm>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "simt/grid.h"
#include "simt/multiprocessor.h"

namespace kvp::simt {
namespace {

// Multiprocessors that no launch uses; they keep their stacks for the next one.
class IdleProcessors {
 public:
  std::unique_ptr<Multiprocessor> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Multiprocessor>();
    auto processor = std::move(idle_.back());
    idle_.pop_back();
    return processor;
  }

  void put(std::unique_ptr<Multiprocessor> processor) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(processor));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Multiprocessor>> idle_;
};

// Made when the library is loaded, before there are threads, and never destroyed: others
// may launch until the very end of the program.
IdleProcessors& idle_processors = *new IdleProcessors;

void work(Grid& grid) {
  try {
    auto processor = idle_processors.take();
    processor->run(grid);
    idle_processors.put(std::move(processor));
  } catch (const std::exception& error) {
    grid.fail(std::string("simt: ") + error.what());
  }
}

}  // namespace

std::string launch(const LaunchShape& shape, KernelCall call) {
  Grid grid(shape, call, options());
  const auto os_threads =
      static_cast<int>(std::min<uint64_t>(grid.options().os_threads, grid.blocks()));
  // All begin together, lest the first be done with the blocks before the others exist.
  std::latch start(os_threads);
  std::vector<std::thread> helpers;
  for (int i = 1; i < os_threads; ++i) {
    helpers.emplace_back([&] {
      start.arrive_and_wait();
      work(grid);
    });
  }
  start.arrive_and_wait();
  work(grid);
  for (std::thread& helper : helpers) helper.join();
  grid.end().acquire();
  return grid.take_error();
}

}  // namespace kvp::simt
