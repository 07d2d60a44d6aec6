// A block's threads: their indices, barriers with and without a vote, the order in which schedules
// run them.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/shared_memory.cuh"
#include "testing.h"

namespace {

using kvp::cuda::SharedMemory;
using namespace simt_test;

__global__ void write_indices(uint32_t* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned size = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(&out[block * size + thread], threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z +
                                             1000 * blockIdx.x + 10000 * blockIdx.y +
                                             100000 * blockIdx.z);
}

void test_indices() {
  const dim3 grid(3, 2, 2), block(5, 3, 2);
  std::vector<uint32_t> out(12 * 30, 0);
  expect_runs("write_indices", write_indices, grid, block, 0, out.data());
  size_t i = 0;
  for (unsigned block_z = 0; block_z < grid.z; ++block_z) {
    for (unsigned block_y = 0; block_y < grid.y; ++block_y) {
      for (unsigned block_x = 0; block_x < grid.x; ++block_x) {
        for (unsigned z = 0; z < block.z; ++z) {
          for (unsigned y = 0; y < block.y; ++y) {
            for (unsigned x = 0; x < block.x; ++x, ++i) {
              const unsigned expected =
                  x + 10 * y + 100 * z + 1000 * block_x + 10000 * block_y + 100000 * block_z;
              expect(out[i] == expected, "index %zu is %u, expected %u", i, out[i], expected);
            }
          }
        }
      }
    }
  }
}

// Each round every thread reads what another wrote in the round before.
__global__ void rotate(int rounds, int* out) {
  SharedMemory shared;
  int* const values = shared.take<int>(blockDim.x);
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
    const int next = values[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    values[threadIdx.x] = next;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
}

void test_barriers() {
  for (const int threads : {1, 31, 32, 100, 1024}) {
    constexpr int kBlocks = 5, kRounds = 7;
    std::vector<int> out(static_cast<size_t>(kBlocks * threads), -1);
    const size_t shared_bytes = (threads + 3) / 4 * 16;
    expect_runs("rotate", rotate, kBlocks, threads, shared_bytes, kRounds, out.data());
    for (int i = 0; i < kBlocks * threads; ++i) {
      const int expected = (i % threads + kRounds) % threads;
      expect(out[i] == expected, "rotate: %d of %d is %d, expected %d", i, threads, out[i],
             expected);
    }
  }
}

// Nothing is left of the blocks before.
__global__ void leave_numbers(int* found) {
  SharedMemory shared;
  float* const floats = shared.take<float>(blockDim.x);
  if (!std::isnan(floats[threadIdx.x])) atomicAdd(found, 1);
  floats[threadIdx.x] = 1;
}

void test_shared_memory_begins_as_nan() {
  int found = 0;
  expect_runs("leave_numbers", leave_numbers, 5, 40, 160, &found);
  expect(found == 0, "%d floats of shared memory are numbers before they are written", found);
}

struct Votes {
  int count;
  int any;
  int all;
};

// Votes follow each other without a barrier between, so a fast thread must not disturb a slow one.
__global__ void vote(int rounds, Votes* out) {
  for (int round = 0; round < rounds; ++round) {
    const bool yes = static_cast<int>(threadIdx.x) < round;
    Votes& votes = out[round * blockDim.x + threadIdx.x];
    votes.count = __syncthreads_count(yes ? 4 : 0);
    votes.any = __syncthreads_or(yes ? 2 : 0);
    votes.all = __syncthreads_and(yes ? -1 : 0);
  }
}

void test_votes() {
  constexpr int kThreads = 40, kRounds = kThreads + 1;
  std::vector<Votes> out(kThreads * kRounds);
  expect_runs("vote", vote, 1, kThreads, 0, kRounds, out.data());
  for (int i = 0; i < kThreads * kRounds; ++i) {
    const int yes = i / kThreads;
    expect(out[i].count == yes && out[i].any == (yes > 0) && out[i].all == (yes == kThreads),
           "vote with %d of %d: %d, %d, %d", yes, kThreads, out[i].count, out[i].any, out[i].all);
  }
}

__global__ void note_order(int* ticket, int* order) {
  order[atomicAdd(ticket, 1)] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

std::vector<int> order_of(const kvp::simt::Options& options) {
  constexpr int kBlocks = 6, kThreads = 50;
  kvp::simt::configure(options);
  int ticket = 0;
  std::vector<int> order(kBlocks * kThreads, -1);
  expect_runs("note_order", note_order, kBlocks, kThreads, 0, &ticket, order.data());
  return order;
}

void test_orders() {
  using kvp::simt::Schedule;
  std::vector<int> ascending(300);
  std::iota(ascending.begin(), ascending.end(), 0);
  const std::vector<int> descending(ascending.rbegin(), ascending.rend());
  expect(order_of({Schedule::kAscending, 0, 1}) == ascending, "the ascending order");
  expect(order_of({Schedule::kDescending, 0, 1}) == descending, "the descending order");
  const std::vector<int> first = order_of({Schedule::kRandom, 1, 1});
  expect(first == order_of({Schedule::kRandom, 1, 1}), "a seed always gives the same order");
  expect(first != order_of({Schedule::kRandom, 2, 1}), "seeds give different orders");
  expect(first[0] / 50 != 0 || first[0] % 50 != 0, "blocks and threads are shuffled");
}

}  // namespace

int main() {
  under_all_schedules([] {
    test_indices();
    test_barriers();
    test_shared_memory_begins_as_nan();
    test_votes();
  });
  test_orders();
  return failures == 0 ? 0 : 1;
}
