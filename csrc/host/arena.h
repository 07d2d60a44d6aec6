// Cuts the caller's workspace into pieces.
#ifndef KVP_HOST_ARENA_H
#define KVP_HOST_ARENA_H

#include <cstddef>
#include <cstdint>

namespace kvp {

constexpr int64_t kCacheLine = 64;

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Hands out consecutive pieces of memory, each on cache lines of its own.
class Arena {
 public:
  // Without a base only `bytes` is meaningful.
  explicit Arena(std::byte* base) : base_(base) {
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(base) % kCacheLine);
    if (address != 0) base_ += kCacheLine - address;
  }

  template <typename T>
  T* take(int64_t count) {
    auto* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), kCacheLine);
    return piece;
  }

  // Enough for any alignment of the base.
  size_t bytes() const { return static_cast<size_t>(used_ == 0 ? 0 : used_ + kCacheLine); }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace kvp

#endif  // KVP_HOST_ARENA_H
