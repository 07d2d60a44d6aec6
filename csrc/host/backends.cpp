#include "host/backends.h"

#include "cpu/evict.h"
#include "host/error.h"

// The build has the backends that these macros name. They are declared here and not included, since
// one header serves both: the CUDA backend, and its sources compiled for the host.
#ifdef KVP_HAS_CUDA
namespace kvp::cuda {
size_t workspace_bytes(kvp_op op, const kvp_args& args);
void run(kvp_op op, const kvp_args& args);
}  // namespace kvp::cuda
#endif
#ifdef KVP_HAS_SIMT
namespace kvp::cuda_on_host {
size_t workspace_bytes(kvp_op op, const kvp_args& args);
void run(kvp_op op, const kvp_args& args);
}  // namespace kvp::cuda_on_host
#endif

namespace kvp {

const Backend& backend_for(int32_t device) {
  switch (device) {
    case KVP_CPU: {
      static constexpr Backend cpu{cpu::workspace_bytes, cpu::run};
      return cpu;
    }
    case KVP_CUDA: {
#ifdef KVP_HAS_CUDA
      static constexpr Backend cuda{cuda::workspace_bytes, cuda::run};
      return cuda;
#else
      unsupported("device is KVP_CUDA, this build has no CUDA backend");
#endif
    }
    case KVP_SIMT: {
#ifdef KVP_HAS_SIMT
      static constexpr Backend simt{cuda_on_host::workspace_bytes, cuda_on_host::run};
      return simt;
#else
      unsupported("device is KVP_SIMT, this build does not run CUDA kernels on the host");
#endif
    }
    default:
      invalid("device is %d, expected KVP_CPU (0), KVP_CUDA (1) or KVP_SIMT (2)", device);
  }
}

}  // namespace kvp

extern "C" const char* kvp_devices(void) {
  return "cpu"
#ifdef KVP_HAS_CUDA
         ",cuda"
#endif
#ifdef KVP_HAS_SIMT
         ",simt"
#endif
      ;
}
