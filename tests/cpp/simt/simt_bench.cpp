// How fast the runtime is: what a thread's step costs between two switches of fibers, and a warp's
// mma.
#include <cuda_runtime.h>

#include <cstdio>
#include <ctime>

#include "cuda/ptx/mma.cuh"
#include "simt/options.h"

namespace {

__global__ void barriers(int steps) {
  for (int i = 0; i < steps; ++i) __syncthreads();
}

__global__ void shuffles(int steps, float* out) {
  float x = static_cast<float>(threadIdx.x);
  for (int i = 0; i < steps; ++i) x = __shfl_xor_sync(0xFFFFFFFFu, x, 1) + 1.0f;
  out[threadIdx.x] = x;
}

template <class Half>
__global__ void products(int steps, float* out) {
  const uint32_t a[4] = {threadIdx.x, 0, 0x3C003C00u, 0x3F803F80u};
  float d[4] = {};
  for (int i = 0; i < steps; ++i) kvp::cuda::mma_m16n8k16<Half>(d, a, 0x3C003C00u, threadIdx.x);
  out[threadIdx.x] = d[0];
}

__global__ void nothing() {}

template <class... P>
double seconds(void (*kernel)(P...), int blocks, int threads, P... parameters) {
  void* arguments[] = {&parameters..., nullptr};
  const std::clock_t begin = std::clock();  // of the processor, since others use the machine too
  if (cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments) != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorString(cudaGetLastError()));
  }
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

template <class... P>
double best_seconds(void (*kernel)(P...), int blocks, int threads, P... parameters) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double time = seconds(kernel, blocks, threads, parameters...);
    best = time < best ? time : best;
  }
  return best;
}

}  // namespace

int main() {
  float out[1024];
  for (const auto schedule : {kvp::simt::Schedule::kAscending, kvp::simt::Schedule::kRandom}) {
    kvp::simt::configure({schedule, 1, 1});
    std::printf("%s schedule\n", schedule == kvp::simt::Schedule::kRandom ? "random" : "ascending");
    for (const int threads : {32, 256, 1024}) {
      const int steps = (1 << 20) / threads, count = steps * threads;
      const double warp_products = count / 32.0;
      std::printf(
          "  %4d threads: %5.1f M barrier steps/s, %5.1f M shuffle steps/s, "
          "%4.2f M bf16 mma/s, %4.2f M fp16 mma/s, %5.2f M empty threads/s\n",
          threads, count / best_seconds(barriers, 1, threads, steps) * 1e-6,
          count / best_seconds(shuffles, 1, threads, steps, &out[0]) * 1e-6,
          warp_products / best_seconds(products<kvp::cuda::Bf16>, 1, threads, steps, &out[0]) *
              1e-6,
          warp_products / best_seconds(products<kvp::cuda::Fp16>, 1, threads, steps, &out[0]) *
              1e-6,
          threads * 64 / best_seconds(nothing, 64, threads) * 1e-6);
    }
  }
  return 0;
}
