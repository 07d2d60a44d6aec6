// The block's dynamic shared memory, handed out piece by piece.
#ifndef KVP_CUDA_SHARED_MEMORY_CUH
#define KVP_CUDA_SHARED_MEMORY_CUH

#include <cuda_runtime.h>

#include <cstdint>

namespace kvp::cuda {

// Every thread takes the same pieces in the same order.
class SharedMemory {
 public:
  __device__ SharedMemory() {
    extern __shared__ __align__(16) unsigned char kvp_shared[];
    next_ = kvp_shared;
  }

  // `count` elements on a 16-byte boundary.
  template <class T>
  __device__ T* take(int64_t count) {
    T* const piece = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
    return piece;
  }

 private:
  unsigned char* next_;
};

}  // namespace kvp::cuda

#endif  // KVP_CUDA_SHARED_MEMORY_CUH
