// What launchers use of CUDA's runtime. There is one device, work is done when a call returns, and
// a stream is a name for nothing.
#ifndef KVP_SIMT_CUDA_RUNTIME_API_H
#define KVP_SIMT_CUDA_RUNTIME_API_H

#include <cstddef>
#include <type_traits>
#include <utility>

#include "simt/cuda/vector_types.h"
#include "simt/launch.h"

// The numbers are CUDA's.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorLaunchFailure = 719,  // cudaGetErrorString then says what the kernel did wrong
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

// Of all that CUDA tells about a kernel, what launchers ask.
struct cudaFuncAttributes {
  int ptxVersion;  // the architecture that it was compiled for: 80 for compute capability 8.0
};

using cudaStream_t = struct CUstream_st*;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();  // of this host thread, and forgets it
cudaError_t cudaPeekAtLastError();

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream = nullptr);

namespace kvp::simt {

cudaError_t get_attributes(cudaFuncAttributes* attributes);
cudaError_t set_shared_bytes(const void* kernel, cudaFuncAttribute attribute, int bytes);
cudaError_t launch_kernel(const void* kernel, const LaunchShape& shape, KernelCall call);

// What a thread of a launch runs: the kernel with its own copy of every parameter.
template <class... P>
struct BoundKernel {
  void (*kernel)(P...);
  void** arguments;

  static void run(const void* bound) {
    static_cast<const BoundKernel*>(bound)->call(std::index_sequence_for<P...>{});
  }

  template <size_t... kIndex>
  void call(std::index_sequence<kIndex...>) const {
    kernel(*static_cast<std::remove_reference_t<P>*>(arguments[kIndex])...);
  }
};

}  // namespace kvp::simt

template <class... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(P...)) {
  return kvp::simt::get_attributes(attributes);
}

template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
  return kvp::simt::set_shared_bytes(reinterpret_cast<const void*>(kernel), attribute, value);
}

template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes = 0, cudaStream_t = nullptr) {
  const kvp::simt::BoundKernel<P...> bound{kernel, arguments};
  return kvp::simt::launch_kernel(reinterpret_cast<const void*>(kernel),
                                  {grid, block, shared_bytes},
                                  {kvp::simt::BoundKernel<P...>::run, &bound});
}

#endif  // KVP_SIMT_CUDA_RUNTIME_API_H
