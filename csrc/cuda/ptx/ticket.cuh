// Hand-over between blocks: whoever takes the last ticket sees what the takers of all earlier ones
// had written, and what their blocks had written before a barrier that came before the ticket.
#ifndef KVP_CUDA_PTX_TICKET_CUH
#define KVP_CUDA_PTX_TICKET_CUH

#include <cuda_runtime.h>

#include <cstdint>

namespace kvp::cuda {

// The number of tickets taken before.
__device__ __forceinline__ uint32_t take_ticket(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

}  // namespace kvp::cuda

#endif  // KVP_CUDA_PTX_TICKET_CUH
