// Atomic operations as on the device: they order no other memory. What hands data from one block
// to another is cuda/ptx/ticket.cuh.
#ifndef KVP_SIMT_CUDA_ATOMICS_H
#define KVP_SIMT_CUDA_ATOMICS_H

#include <concepts>
#include <type_traits>

namespace kvp::simt {

// The types that CUDA has these operations for; uint64_t, an unsigned long, is not one of them.
template <class T>
concept AtomicWord =
    std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;

// Replaces a value by `better` while that is better than what is there.
template <AtomicWord T, class Better>
T improve(T* address, T candidate, Better better) {
  T old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (better(candidate, old) &&
         !__atomic_compare_exchange_n(address, &old, candidate, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace kvp::simt

// All return what was there before.
template <kvp::simt::AtomicWord T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

template <kvp::simt::AtomicWord T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return kvp::simt::improve(address, value, [](T a, T b) { return a < b; });
}

template <kvp::simt::AtomicWord T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return kvp::simt::improve(address, value, [](T a, T b) { return a > b; });
}

template <kvp::simt::AtomicWord T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}

template <kvp::simt::AtomicWord T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}

template <kvp::simt::AtomicWord T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

#endif  // KVP_SIMT_CUDA_ATOMICS_H
