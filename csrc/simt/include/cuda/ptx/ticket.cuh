// Stands in for csrc/cuda/ptx/ticket.cuh on the host.
#ifndef KVP_SIMT_CUDA_PTX_TICKET_CUH
#define KVP_SIMT_CUDA_PTX_TICKET_CUH

#include <cstdint>

namespace kvp::cuda {

// The number of tickets taken before; who takes the last one sees what the others had written.
inline uint32_t take_ticket(uint32_t* counter) {
  return __atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL);
}

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_TICKET_CUH
