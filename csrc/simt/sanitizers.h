// What sanitizers must be told about fibers and shared memory, in programs that have them. The
// functions are weak: one build of the runtime serves programs with and without.
//
// Only the kernels are instrumented. To TSan the runtime's own state, which fibers share freely,
// must not exist; what orders the kernels' memory is what SyncPoint says.
#ifndef KVP_SIMT_SANITIZERS_H
#define KVP_SIMT_SANITIZERS_H

#include <cstddef>
#include <cstdint>

#ifdef __SANITIZE_THREAD__
#error "compile the simt runtime without -fsanitize=thread: only the kernels are instrumented"
#endif

extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                  size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom,
                                                   size_t* old_bytes);
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* begin, size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin, size_t bytes);

[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void __tsan_read16(void* address);
[[gnu::weak]] void __tsan_write16(void* address);
}

namespace kvp::simt {

inline bool has_asan() { return __sanitizer_start_switch_fiber != nullptr; }
inline bool has_tsan() { return __tsan_create_fiber != nullptr; }

inline void poison(const void* begin, size_t bytes) {
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(begin, bytes);
}

inline void unpoison(const void* begin, size_t bytes) {
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(begin, bytes);
}

// Accesses of 16 bytes that the runtime makes for the kernel.
inline void kernel_reads_16(const void* address) {
  if (has_tsan()) __tsan_read16(const_cast<void*>(address));
}

inline void kernel_writes_16(void* address) {
  if (has_tsan()) __tsan_write16(address);
}

// What comes before a release happens before what follows an acquire of the same point. The point
// is its address: TSan forgets it when the memory is freed.
class SyncPoint {
 public:
  void release() {
    if (has_tsan()) __tsan_release(this);
  }
  void acquire() {
    if (has_tsan()) __tsan_acquire(this);
  }

 private:
  uint64_t address_ = 0;
};

// Where memory is synchronised through one point again and again. Two points take turns: who is
// slow to leave must not be ordered after what the fast ones did since. Nobody can be slower than
// that, since without him the next turn does not end.
class TurnstileSync {
 public:
  SyncPoint& now() { return points_[turn_]; }
  void next() { turn_ = 1 - turn_; }

 private:
  SyncPoint points_[2];
  int turn_ = 0;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_SANITIZERS_H
