// Checks the device, chooses the kernel and launches it.
#include <cuda_runtime.h>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/plan.h"
#include "host/error.h"

#ifndef KVP_ARCHITECTURES
#define KVP_ARCHITECTURES "the host"
#endif

namespace kvp::cuda {
namespace {

void check(const char* what, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed launch must not fail the caller's next call
  throw Error(KVP_INTERNAL, std::string(what) + ": " + cudaGetErrorString(status));
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// Any of the kernels tells which architecture this build has for the device.
Device current_device() {
  int device = 0;
  check("cudaGetDevice", cudaGetDevice(&device));
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  if (major < 8) {
    unsupported("device %d has compute capability %d.%d, the CUDA kernels need 8.0 or newer",
                device, major, minor);
  }
  cudaFuncAttributes kernel{};
  const cudaError_t status = cudaFuncGetAttributes(&kernel, finish_kernel());
  if (status == cudaErrorNoKernelImageForDevice) {
    cudaGetLastError();
    unsupported(
        "device %d has compute capability %d.%d, this build of kvp has kernels "
        "for " KVP_ARCHITECTURES " (KVP_CUDA_ARCHITECTURES of its build)",
        device, major, minor);
  }
  check("cudaFuncGetAttributes", status);
  return {attribute(cudaDevAttrMultiProcessorCount, device),
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device), kernel.ptxVersion};
}

Kernel scoring_kernel(const kvp_args& args, int32_t hidden) {
  return args.dtype == KVP_FLOAT16 ? evict_kernel_fp16(hidden) : evict_kernel_bf16(hidden);
}

void launch(Kernel kernel, int64_t blocks, const Plan& plan, const Device& device,
            cudaStream_t stream) {
  // The limit belongs to the kernel, not to the launch: all of it, so that threads that launch at
  // the same time do not lower each other's.
  check("cudaFuncSetAttribute",
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(device.shared_bytes)));
  void* arguments[] = {const_cast<Params*>(&plan.params)};
  check("cudaLaunchKernel", cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                                             dim3(kThreads), arguments, plan.shared_bytes, stream));
}

}  // namespace

size_t workspace_bytes(kvp_op op, const kvp_args& args) { return plan_workspace_bytes(op, args); }

void run(kvp_op op, const kvp_args& args) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  Plan plan{};
  const Device device = current_device();
  make_plan(op, args, device, plan);
  if (plan.rows == 0) {
    if (args.changed == nullptr || op == KVP_OP_SCORE) return;
    return check("cudaMemsetAsync", cudaMemsetAsync(args.changed, 0, sizeof(int32_t), stream));
  }
  if (plan.ticket_bytes > 0) {
    check("cudaMemsetAsync", cudaMemsetAsync(plan.tickets, 0, plan.ticket_bytes, stream));
  }
  const Params& p = plan.params;
  launch(p.scores_entries ? scoring_kernel(args, p.weights.layout.hidden) : finish_kernel(),
         plan.items, plan, device, stream);
  if (op != KVP_OP_COMPACT && op != KVP_OP_SCORE && args.mode == KVP_MODEL) {
    launch(finish_model_kernel(), plan.rows, plan, device, stream);
  }
}

}  // namespace kvp::cuda
