#include "simt/cuda/runtime_api.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>

namespace {

// The device is one that the kernels were compiled for, unless a test pretends another; 80 is
// compute capability 8.0. It has few processors, so that small problems already use them all.
std::atomic<int> architecture{KVP_SIMT_ARCHITECTURE};
constexpr int kProcessors = 4;
constexpr int kMaxThreads = 1024;
constexpr dim3 kMaxBlock(1024, 1024, 64);
constexpr dim3 kMaxGrid(0x7FFFFFFF, 65535, 65535);
constexpr int kSharedBytes = 48 << 10;

// That a block may ask for.
int max_shared_bytes() {
  const int of = architecture;
  if (of < 80) return 64 << 10;
  if (of == 86 || of == 89 || of >= 120) return 99 << 10;
  return of < 90 ? 163 << 10 : 227 << 10;
}

thread_local cudaError_t last_status = cudaSuccess;
thread_local std::string last_message;

// Returns `status`, and remembers errors as the runtime does.
cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) last_status = status;
  return status;
}

cudaError_t remember_failure(const std::string& message) {
  last_message = message;
  return remember(cudaErrorLaunchFailure);
}

bool fits(const dim3& size, const dim3& limit) {
  return size.x >= 1 && size.y >= 1 && size.z >= 1 && size.x <= limit.x && size.y <= limit.y &&
         size.z <= limit.z;
}

// Kernels may use more shared memory than every device has only after they asked for it.
class SharedLimits {
 public:
  void set(const void* kernel, int bytes) {
    const std::lock_guard lock(mutex_);
    bytes_[kernel] = bytes;
  }

  size_t of(const void* kernel) {
    const std::lock_guard lock(mutex_);
    const auto found = bytes_.find(kernel);
    const int bytes = found == bytes_.end() ? kSharedBytes : found->second;
    return static_cast<size_t>(bytes < kSharedBytes ? kSharedBytes : bytes);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, int> bytes_;
};

// Made when the library is loaded, before there are threads, and never destroyed: others may launch
// until the very end of the program.
SharedLimits& shared_limits = *new SharedLimits;

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorLaunchFailure:
      return kvp::simt::last_error();
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = last_status;
  last_status = cudaSuccess;
  return status;
}

cudaError_t cudaPeekAtLastError() { return last_status; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return remember(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kMaxThreads;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedBytes;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = kProcessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = architecture / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = architecture % 10;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = max_shared_bytes();
      return cudaSuccess;
  }
  return remember(cudaErrorInvalidValue);
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t) {
  if (bytes > 0) std::memset(address, value, bytes);
  return cudaSuccess;
}

namespace kvp::simt {

const char* last_error() { return last_message.c_str(); }

cudaError_t get_attributes(cudaFuncAttributes* attributes) {
  // Machine code runs on devices of its generation that are not older.
  const int device = architecture;
  if (device / 10 != KVP_SIMT_ARCHITECTURE / 10 || device < KVP_SIMT_ARCHITECTURE) {
    return remember(cudaErrorNoKernelImageForDevice);
  }
  attributes->ptxVersion = KVP_SIMT_ARCHITECTURE;
  return cudaSuccess;
}

cudaError_t set_shared_bytes(const void* kernel, cudaFuncAttribute attribute, int bytes) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes < 0 ||
      bytes > max_shared_bytes()) {
    return remember(cudaErrorInvalidValue);
  }
  shared_limits.set(kernel, bytes);
  return cudaSuccess;
}

cudaError_t launch_kernel(const void* kernel, const LaunchShape& shape, KernelCall call) {
  const dim3& block = shape.block;
  if (!fits(shape.grid, kMaxGrid) || !fits(block, kMaxBlock) ||
      uint64_t{block.x} * block.y * block.z > kMaxThreads) {
    return remember(cudaErrorInvalidConfiguration);
  }
  if (shape.shared_bytes > shared_limits.of(kernel)) {
    return remember(cudaErrorInvalidValue);
  }
  try {
    const std::string error = launch(shape, call);
    return error.empty() ? cudaSuccess : remember_failure(error);
  } catch (const std::exception& error) {
    return remember_failure(std::string("simt: ") + error.what());
  }
}

}  // namespace kvp::simt

// For tests: a device of another architecture from now on, such as 75; 0 is the first one again.
extern "C" __attribute__((visibility("default"))) void kvp_simt_pretend(int of_device) {
  architecture = of_device == 0 ? KVP_SIMT_ARCHITECTURE : of_device;
}
