// Stands in for csrc/cuda/ptx/cp_async.cuh on the host. A copy is made as late as it may be: by the
// wait. Until then its destination is NaN.
#ifndef KVP_SIMT_CUDA_PTX_CP_ASYNC_CUH
#define KVP_SIMT_CUDA_PTX_CP_ASYNC_CUH

#include <cstddef>

#include "simt/device.h"

namespace kvp::cuda {

// 16 bytes; both addresses are multiples of 16.
inline void cp_async_16(void* shared, const void* global, simt::Site site = simt::Site::current()) {
  // The runtime is not instrumented, so an address sanitizer sees the source here.
  const auto* source = static_cast<const volatile std::byte*>(global);
  static_cast<void>(source[0]);
  static_cast<void>(source[15]);
  simt::copy_async(shared, global, site);
}

// Ends a group: the copies since the last one.
inline void cp_async_commit() { simt::commit_copies(); }

// Until at most the last `kPending` groups are under way.
template <int kPending>
void cp_async_wait() {
  static_assert(kPending >= 0);
  simt::wait_copies(kPending);
}

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_CP_ASYNC_CUH
