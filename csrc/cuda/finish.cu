// The kernels that score nothing.
#include "cuda/evict.cuh"
#include "cuda/kernels.h"

namespace kvp::cuda {
namespace {

__global__ void __launch_bounds__(kThreads, 2) one_block_per_row(const __grid_constant__ Params p) {
  finish_only(p);
}

__global__ void __launch_bounds__(kThreads, 2) second_launch(const __grid_constant__ Params p) {
  finish_model(p);
}

}  // namespace

Kernel finish_kernel() { return one_block_per_row; }
Kernel finish_model_kernel() { return second_launch; }

}  // namespace kvp::cuda
