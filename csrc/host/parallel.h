// A small persistent thread pool for the CPU backend.
//
// parallel_for(threads, count, body) calls body(worker, item) once for every item in [0, count),
// on at most `threads` threads including the caller; items are handed out one by one, in order.
// `worker` < threads is unique among the threads of one call, so it may index scratch memory.
// Sleeping threads wait on a condition variable: nothing spins beside the framework's own pool.
// A caller that finds the pool taken by another does its work alone instead of waiting. The
// first exception of a body is rethrown to the caller once all threads have left the call.
// After fork() the child starts with a pool of its own.
#ifndef KVP_HOST_PARALLEL_H
#define KVP_HOST_PARALLEL_H

#include <cstdint>
#include <memory>
#include <type_traits>

namespace kvp {

// A non-owning reference to a callable: unlike std::function it never allocates.
class ParallelBody {
 public:
  template <typename Body>
    requires(!std::is_same_v<std::remove_cvref_t<Body>, ParallelBody>)
  ParallelBody(Body&& body)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(body)))),
        call_([](void* object, int worker, int64_t item) {
          (*static_cast<std::remove_reference_t<Body>*>(object))(worker, item);
        }) {}

  void operator()(int worker, int64_t item) const { call_(object_, worker, item); }

 private:
  void* object_;
  void (*call_)(void*, int, int64_t);
};

void parallel_for(int threads, int64_t count, ParallelBody body);

}  // namespace kvp

#endif  // KVP_HOST_PARALLEL_H
