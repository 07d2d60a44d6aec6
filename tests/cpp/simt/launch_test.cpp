// The host side: what launches refuse, how errors come back, options.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "testing.h"

extern "C" int kvp_simt_configure(int schedule, uint64_t seed, int os_threads);
extern "C" void kvp_simt_pretend(int of_device);

namespace {

using namespace simt_test;

struct Large {
  int64_t numbers[1000];
};

__global__ void sum_parameters(int x, const float* y, Large z, float* out) {
  z.numbers[0] += threadIdx.x;  // a parameter is a copy, of each thread its own
  atomicExch(reinterpret_cast<int*>(out) + threadIdx.x,
             __float_as_int(static_cast<float>(x) + *y + static_cast<float>(z.numbers[0]) +
                            static_cast<float>(z.numbers[999])));
}

void test_parameters() {
  int x = 1;
  float y = 0.5f, out[64];
  const float* y_address = &y;
  float* out_address = out;
  Large z{};
  z.numbers[0] = 10;
  z.numbers[999] = 100;
  void* arguments[] = {&x, &y_address, &z, &out_address};
  expect(cudaLaunchKernel(sum_parameters, dim3(1), dim3(64), arguments, 0, nullptr) == cudaSuccess,
         "a launch with four parameters");
  for (int i = 0; i < 64; ++i) {
    expect(out[i] == 111.5f + static_cast<float>(i), "thread %d has %g", i, out[i]);
  }
  expect(z.numbers[0] == 10, "kernels do not change the caller's parameters");
}

__global__ void nothing() {}

void expect_refused(cudaError_t expected, dim3 grid, dim3 block, size_t shared_bytes = 0) {
  cudaGetLastError();
  const cudaError_t status = run(nothing, grid, block, shared_bytes);
  expect(status == expected, "a launch of %u x %u x %u with %zu bytes returns %d, expected %d",
         grid.x, block.x, block.z, shared_bytes, status, expected);
  expect(cudaPeekAtLastError() == expected && cudaGetLastError() == expected &&
             cudaGetLastError() == cudaSuccess,
         "the last error is kept until it is asked for");
}

void test_refused_launches() {
  expect_refused(cudaErrorInvalidConfiguration, 0, 32);
  expect_refused(cudaErrorInvalidConfiguration, dim3(1, 0), 32);
  expect_refused(cudaErrorInvalidConfiguration, 1, 0);
  expect_refused(cudaErrorInvalidConfiguration, 1, 1025);
  expect_refused(cudaErrorInvalidConfiguration, 1, dim3(32, 33));
  expect_refused(cudaErrorInvalidConfiguration, 1, dim3(1, 1, 65));
  expect_refused(cudaErrorInvalidConfiguration, dim3(1, 65536), 32);
  expect_refused(cudaErrorInvalidValue, 1, 32, (48 << 10) + 1);
  expect_refused(cudaSuccess, 1, 1024, 48 << 10);
  expect(std::string(cudaGetErrorString(cudaErrorInvalidConfiguration)) ==
             "invalid configuration argument",
         "the text of an error");
}

constexpr int kSharedBytes = 227 << 10;  // that a block of an H100 may ask for

void test_shared_limit() {
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  expect(allow(kSharedBytes + 1) == cudaErrorInvalidValue,
         "no kernel gets more than the device has");
  expect(allow(-1) == cudaErrorInvalidValue, "no negative size");
  expect(allow(kSharedBytes) == cudaSuccess, "all that the device has");
  expect_refused(cudaSuccess, 1, 32, kSharedBytes);
  expect_refused(cudaErrorInvalidValue, 1, 32, kSharedBytes + 1);
}

// Machine code of architecture KVP_SIMT_ARCHITECTURE runs on its generation only.
void test_pretended_devices() {
  const auto attributes = [](int of_device) {
    kvp_simt_pretend(of_device);
    cudaFuncAttributes found{};
    const cudaError_t status = cudaFuncGetAttributes(&found, nothing);
    expect(status == cudaGetLastError(), "the status is the last error");
    expect(status != cudaSuccess || found.ptxVersion == KVP_SIMT_ARCHITECTURE, "the architecture");
    return status;
  };
  constexpr int kGeneration = KVP_SIMT_ARCHITECTURE / 10;
  expect(attributes(0) == cudaSuccess && attributes(kGeneration * 10 + 9) == cudaSuccess,
         "devices of the generation");
  expect(attributes(kGeneration * 10 - 5) == cudaErrorNoKernelImageForDevice, "an older device");
  expect(attributes(kGeneration * 10 + 10) == cudaErrorNoKernelImageForDevice, "a newer device");
}

void test_device() {
  int value = -1;
  expect(cudaGetDeviceCount(&value) == cudaSuccess && value == 1, "one device");
  expect(cudaGetDevice(&value) == cudaSuccess && value == 0, "device 0");
  const auto attribute = [&](cudaDeviceAttr which) {
    return cudaDeviceGetAttribute(&value, which, 0) == cudaSuccess ? value : -1;
  };
  expect(attribute(cudaDevAttrComputeCapabilityMajor) == 9, "major");
  expect(attribute(cudaDevAttrComputeCapabilityMinor) == 0, "minor");
  expect(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) == kSharedBytes, "shared memory");
  expect(attribute(cudaDevAttrMultiProcessorCount) == 4, "processors");
  expect(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1) == cudaErrorInvalidDevice,
         "there is no device 1");
  char bytes[4] = {1, 1, 1, 1};
  expect(cudaMemsetAsync(bytes, 7, 3, nullptr) == cudaSuccess && bytes[2] == 7 && bytes[3] == 1,
         "memset");
}

__global__ void fail_in_block(unsigned block) {
  if (blockIdx.x == block && threadIdx.x == 3) throw std::runtime_error("thrown on purpose");
}

// The first error comes back with its block, and the next launch starts afresh.
void test_kernel_errors() {
  for (const int os_threads : {1, 4}) {
    kvp::simt::configure({kvp::simt::Schedule::kAscending, 0, os_threads});
    expect_error("exception in the kernel: thrown on purpose", fail_in_block, 20, 32, 0, 7u);
    const std::string error = kvp::simt::last_error();
    expect(error.find("by thread (3, 0, 0) of block (7, 0, 0)") != std::string::npos,
           "the place of the error: %s", error.c_str());
    expect(cudaGetErrorString(cudaGetLastError()) == error, "cudaGetErrorString has the message");
    expect_runs("fail_in_block", fail_in_block, 20, 32, 0, 100u);
    expect(kvp::simt::last_error() == error, "the message stays until the next failure");
  }
  kvp::simt::configure({});
}

// Blocks wait for each other, which only as many OS threads bring to an end.
__global__ void meet(unsigned* arrived, unsigned* met) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  atomicAdd(arrived, 1);
  while (atomicAdd(arrived, 0) < gridDim.x && Clock::now() < deadline) std::this_thread::yield();
  if (atomicAdd(arrived, 0) == gridDim.x) atomicAdd(met, 1);
}

void test_os_threads() {
  constexpr unsigned kBlocks = 4;
  kvp::simt::configure({kvp::simt::Schedule::kRandom, 1, kBlocks});
  unsigned arrived = 0, met = 0;
  expect_runs("meet", meet, kBlocks, 1, 0, &arrived, &met);
  expect(met == kBlocks, "%u of %u blocks ran at once", met, kBlocks);
  kvp::simt::configure({});
}

void test_configure() {
  using kvp::simt::Schedule;
  expect(kvp_simt_configure(2, 9, 3) == 0, "a good configuration");
  const kvp::simt::Options options = kvp::simt::options();
  expect(options.schedule == Schedule::kRandom && options.seed == 9 && options.os_threads == 3,
         "the configuration is kept");
  expect(kvp_simt_configure(3, 0, 1) == 1 && kvp_simt_configure(-1, 0, 1) == 1 &&
             kvp_simt_configure(0, 0, 0) == 1 && kvp_simt_configure(0, 0, 65) == 1,
         "bad configurations");
  expect(kvp::simt::options().seed == 9, "a refused configuration changes nothing");
  kvp::simt::configure({});
}

}  // namespace

int main() {
  test_parameters();
  test_refused_launches();
  test_pretended_devices();
  kvp_simt_pretend(90);
  test_shared_limit();
  test_device();
  kvp_simt_pretend(0);
  test_kernel_errors();
  test_os_threads();
  test_configure();
  return failures == 0 ? 0 : 1;
}
