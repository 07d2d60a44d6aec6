// Copies from global to shared memory that go on while the thread does. What a thread copied is
// there for it after the wait, for its block after the barrier that follows.
#ifndef KVP_CUDA_PTX_CP_ASYNC_CUH
#define KVP_CUDA_PTX_CP_ASYNC_CUH

#include <cuda_runtime.h>

#include <cstdint>

namespace kvp::cuda {

// 16 bytes, past L1; both addresses are multiples of 16.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}

// Ends a group: the copies since the last one.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most the last `kPending` groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PTX_CP_ASYNC_CUH
