#include "simt/grid.h"

#include <numeric>
#include <utility>

#include "simt/random.h"

namespace kvp::simt {

Grid::Grid(const LaunchShape& shape, KernelCall call, const Options& options)
    : shape_(shape), call_(call), options_(options) {
  if (options.schedule != Schedule::kRandom) return;
  shuffled_.resize(blocks());
  std::iota(shuffled_.begin(), shuffled_.end(), 0u);
  Random random(options.seed);
  for (auto left = static_cast<uint32_t>(shuffled_.size()); left > 1; --left) {
    std::swap(shuffled_[left - 1], shuffled_[random.below(left)]);
  }
}

uint64_t Grid::blocks() const { return uint64_t{shape_.grid.x} * shape_.grid.y * shape_.grid.z; }

std::optional<uint64_t> Grid::take_block() {
  if (failed_.load(std::memory_order_relaxed)) return std::nullopt;
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  if (turn >= blocks()) return std::nullopt;
  switch (options_.schedule) {
    case Schedule::kAscending:
      return turn;
    case Schedule::kDescending:
      return blocks() - 1 - turn;
    case Schedule::kRandom:
      return shuffled_[turn];
  }
  return std::nullopt;
}

uint3 Grid::block_index(uint64_t linear) const {
  const uint64_t x = shape_.grid.x, y = shape_.grid.y;
  return {static_cast<unsigned>(linear % x), static_cast<unsigned>(linear / x % y),
          static_cast<unsigned>(linear / x / y)};
}

void Grid::fail(const std::string& error) {
  failed_.store(true, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = error;
}

std::string Grid::take_error() {
  const std::lock_guard lock(mutex_);
  return std::move(error_);
}

}  // namespace kvp::simt
