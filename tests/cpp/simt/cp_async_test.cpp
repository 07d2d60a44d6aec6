// Asynchronous copies: which groups a wait brings, what is there before, and what they refuse.
#include "cuda/ptx/cp_async.cuh"

#include <cmath>
#include <cstdint>

#include "cuda/shared_memory.cuh"
#include "testing.h"

namespace {

using kvp::cuda::cp_async_16;
using kvp::cuda::cp_async_commit;
using kvp::cuda::cp_async_wait;
using kvp::cuda::SharedMemory;
using namespace simt_test;

constexpr int kThreads = 40;
constexpr int kGroups = 4;
constexpr size_t kSharedBytes = sizeof(float4) * kGroups * kThreads;

// Bit i of out[step][thread]: whether group i is there. Groups 0, 1, 3 have one copy, 2 has two.
__global__ void waits(const float4* in, uint32_t (*out)[kThreads]) {
  SharedMemory shared;
  float4* const slots = shared.take<float4>(blockDim.x * kGroups) + threadIdx.x * kGroups;
  const int t = static_cast<int>(threadIdx.x);
  const auto arrived = [&] {
    uint32_t bits = 0;
    for (int i = 0; i < kGroups; ++i) {
      if (slots[i].x == in[i].x && slots[i].w == in[i].w) {
        bits |= 1u << i;
      } else if (!std::isnan(slots[i].x) || !std::isnan(slots[i].w)) {
        bits |= 0x100u << i;  // neither the data nor poison
      }
    }
    return bits;
  };
  for (int i = 0; i < kGroups; ++i) slots[i] = make_float4(1, 2, 3, 4);
  cp_async_16(&slots[0], &in[0]);
  cp_async_commit();
  cp_async_16(&slots[1], &in[1]);
  cp_async_commit();
  cp_async_commit();  // an empty group counts as one
  cp_async_16(&slots[2], &in[2]);
  cp_async_16(&slots[3], &in[3]);
  out[0][t] = arrived();
  cp_async_wait<2>();  // the copies that follow the last commit are in no group yet
  out[1][t] = arrived();
  cp_async_wait<1>();
  out[2][t] = arrived();
  cp_async_wait<0>();
  out[3][t] = arrived();
  cp_async_commit();
  cp_async_wait<1>();
  out[4][t] = arrived();
  cp_async_wait<0>();
  out[5][t] = arrived();
}

void test_waits() {
  float4 in[kGroups];
  for (int i = 0; i < kGroups; ++i) in[i] = make_float4(10.0f * (i + 1), 0, 0, 10.0f * (i + 1) + 1);
  uint32_t out[6][kThreads];
  expect_runs("waits", waits, 1, kThreads, kSharedBytes, &in[0], out);
  const uint32_t expected[] = {0x0, 0x1, 0x3, 0x3, 0x3, 0xF};
  for (int step = 0; step < 6; ++step) {
    for (const uint32_t bits : out[step]) {
      expect(bits == expected[step], "step %d: groups 0x%x are there, expected 0x%x", step, bits,
             expected[step]);
    }
  }
}

// A source that changes between issue and wait: the copy is as late as it may be.
__global__ void late_source(float4* global, float* out) {
  SharedMemory shared;
  float4* const slot = shared.take<float4>(1);
  cp_async_16(slot, global);
  cp_async_commit();
  global->x = 2;
  cp_async_wait<0>();
  *out = slot->x;
}

void test_late_source() {
  float4 global = make_float4(1, 1, 1, 1);
  float out = 0;
  expect_runs("late_source", late_source, 1, 1, 16, &global, &out);
  expect(out == 2, "the copy is made by the wait, got %g", out);
}

// More blocks than OS threads, each with copies of its own.
__global__ void copy_all(const float4* in, float4* out, int steps) {
  SharedMemory shared;
  float4* const slots = shared.take<float4>(blockDim.x);
  const int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
  for (int step = 0; step < steps; ++step) {
    cp_async_16(&slots[t], &in[step * n + t]);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    out[(static_cast<int>(blockIdx.x) * steps + step) * n + t] = slots[n - 1 - t];
    __syncthreads();
  }
}

void test_copy_all() {
  constexpr int kBlocks = 7, kSteps = 3;
  static float4 in[kSteps * kThreads], out[kBlocks * kSteps * kThreads];
  for (int i = 0; i < kSteps * kThreads; ++i) in[i] = make_float4(static_cast<float>(i), 0, 0, 0);
  expect_runs("copy_all", copy_all, kBlocks, kThreads, 16 * kThreads, &in[0], &out[0], kSteps);
  for (int i = 0; i < kBlocks * kSteps * kThreads; ++i) {
    const int step = i / kThreads % kSteps, t = i % kThreads;
    const auto expected = static_cast<float>(step * kThreads + kThreads - 1 - t);
    expect(out[i].x == expected, "element %d is %g, expected %g", i, out[i].x, expected);
  }
}

enum class Misuse { kMisalignedSource, kMisalignedShared, kNotShared, kPastPiece, kTwice };

__global__ void misuse(Misuse how, float4* global) {
  SharedMemory shared;
  auto* const piece = reinterpret_cast<std::byte*>(shared.take<float4>(2));
  auto* const source = reinterpret_cast<std::byte*>(global);
  switch (how) {
    case Misuse::kMisalignedSource:
      return cp_async_16(piece, source + 8);
    case Misuse::kMisalignedShared:
      return cp_async_16(piece + 4, source);
    case Misuse::kNotShared:
      return cp_async_16(global + 1, source);
    case Misuse::kPastPiece:
      return cp_async_16(piece + 32, source);
    case Misuse::kTwice:
      cp_async_16(piece, source);
      return cp_async_16(piece, source);
  }
}

__global__ void forgotten(bool commits, const float4* global) {
  SharedMemory shared;
  cp_async_16(shared.take<float4>(1), global);
  if (commits) cp_async_commit();
}

void test_errors() {
  float4 global[2] = {};
  expect_error("misaligned cp.async", misuse, 1, 1, 32, Misuse::kMisalignedSource, &global[0]);
  expect_error("misaligned cp.async", misuse, 1, 1, 32, Misuse::kMisalignedShared, &global[0]);
  expect_error("no piece of the block's shared memory", misuse, 1, 1, 32, Misuse::kNotShared,
               &global[0]);
  expect_error("no piece of the block's shared memory", misuse, 1, 1, 32, Misuse::kPastPiece,
               &global[0]);
  expect_error("another copy is under way", misuse, 1, 1, 32, Misuse::kTwice, &global[0]);
  expect_error("never waited for", forgotten, 1, 1, 16, true, &global[0]);
  expect_error("never waited for", forgotten, 1, 1, 16, false, &global[0]);
}

}  // namespace

int main() {
  under_all_schedules([] {
    test_waits();
    test_late_source();
    test_copy_all();
  });
  test_errors();
  test_waits();  // what an abandoned block left behind is gone
  return failures == 0 ? 0 : 1;
}
