// Stands in for csrc/cuda/shared_memory.cuh on the host: between the pieces lie red zones.
#ifndef KVP_SIMT_CUDA_SHARED_MEMORY_CUH
#define KVP_SIMT_CUDA_SHARED_MEMORY_CUH

#include <cstdint>

#include "simt/device.h"

namespace kvp::cuda {

// Every thread takes the same pieces in the same order.
class SharedMemory {
 public:
  // `count` elements on a 16-byte boundary.
  template <class T>
  T* take(int64_t count, simt::Site site = simt::Site::current()) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    return static_cast<T*>(simt::take_shared(cursor_, bytes, site));
  }

 private:
  simt::SharedCursor cursor_;
};

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_SHARED_MEMORY_CUH
