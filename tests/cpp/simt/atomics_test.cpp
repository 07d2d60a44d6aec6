// Atomics of many blocks on several OS threads, and what a thread computes alone.
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "cuda/ptx/ticket.cuh"
#include "testing.h"

namespace {

using namespace simt_test;

struct Totals {
  int sum;
  unsigned least;
  int most;
  unsigned long long bits;
  unsigned long long wide_sum;
  int by_exchange;  // the sum of what was there before, and what is there at last
  int exchanged;
  unsigned by_swap;  // a sum taken by compare and swap
};

__global__ void update(Totals* totals) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&totals->sum, i);
  atomicMin(&totals->least, 1000000u - static_cast<unsigned>(i));
  atomicMax(&totals->most, i - 5);
  atomicOr(&totals->bits, 1ull << i % 64);
  atomicAdd(&totals->wide_sum, 1ull << 33);
  atomicAdd(&totals->by_exchange, atomicExch(&totals->exchanged, i));
  for (unsigned seen = 0;;) {
    const unsigned was = atomicCAS(&totals->by_swap, seen, seen + 3);
    if (was == seen) break;
    seen = was;
  }
}

void test_atomics() {
  constexpr int kBlocks = 40, kThreads = 64, kAll = kBlocks * kThreads;
  for (const int os_threads : {1, 4}) {
    kvp::simt::configure({kvp::simt::Schedule::kRandom, 5, os_threads});
    Totals totals{};
    totals.least = 0xFFFFFFFFu;
    totals.most = -1000;
    expect_runs("update", update, kBlocks, kThreads, 0, &totals);
    constexpr int kSum = kAll * (kAll - 1) / 2;
    expect(totals.sum == kSum, "sum is %d", totals.sum);
    expect(totals.least == 1000000u - kAll + 1, "least is %u", totals.least);
    expect(totals.most == kAll - 6, "most is %d", totals.most);
    expect(totals.bits == ~0ull, "bits are 0x%llx", totals.bits);
    expect(totals.wide_sum == static_cast<unsigned long long>(kAll) << 33, "wide_sum is %llu",
           totals.wide_sum);
    expect(totals.by_exchange + totals.exchanged == kSum, "exchanges lose %d",
           kSum - totals.by_exchange - totals.exchanged);
    expect(totals.by_swap == 3u * kAll, "by_swap is %u", totals.by_swap);
  }
  kvp::simt::configure({});
}

// The block that comes last sums what all wrote.
__global__ void sum_by_last(int* partial, uint32_t* ticket, int* out) {
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = static_cast<int>(blockIdx.x) + 1;
    if (kvp::cuda::take_ticket(ticket) + 1 == gridDim.x) {
      for (unsigned i = 0; i < gridDim.x; ++i) *out += partial[i];
    }
  }
}

void test_tickets() {
  constexpr int kBlocks = 100;
  for (int again = 0; again < 20; ++again) {
    kvp::simt::configure({kvp::simt::Schedule::kRandom, static_cast<uint64_t>(again), 4});
    std::vector<int> partial(kBlocks);
    uint32_t ticket = 0;
    int out = 0;
    expect_runs("sum_by_last", sum_by_last, kBlocks, 2, 0, partial.data(), &ticket, &out);
    expect(ticket == kBlocks && out == kBlocks * (kBlocks + 1) / 2, "the last block's sum is %d",
           out);
  }
  kvp::simt::configure({});
}

// Launches by two host threads at once keep to themselves.
void test_two_hosts() {
  kvp::simt::configure({kvp::simt::Schedule::kRandom, 1, 2});
  const auto launch_many = [] {
    for (int again = 0; again < 20; ++again) {
      std::vector<int> partial(10);
      uint32_t ticket = 0;
      int out = 0;
      expect_runs("sum_by_last", sum_by_last, 10, 2, 0, partial.data(), &ticket, &out);
      expect(out == 55, "sum of one of two launches is %d", out);
    }
  };
  std::thread other(launch_many);
  launch_many();
  other.join();
  kvp::simt::configure({});
}

void test_thread_functions() {
  expect(__popc(0xF0F00001u) == 9 && __popcll(0xF000000000000001ull) == 5, "popc");
  expect(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0, "clz");
  expect(__ffs(0) == 0 && __ffs(8) == 4 && __ffs(INT32_MIN) == 32, "ffs");
  expect(__brev(1) == 0x80000000u && __brev(0xF0000000u) == 0xF, "brev");
  expect(__float_as_uint(-0.0f) == 0x80000000u && __float_as_int(1.0f) == 0x3F800000, "float_as");
  expect(__uint_as_float(0x40000000u) == 2 && std::isnan(__int_as_float(-1)), "as_float");
  expect(rsqrtf(0.25f) == 2 && __frcp_rn(4) == 0.25f && __fdividef(1, 8) == 0.125f, "quotients");
  expect(std::abs(__expf(1) - 2.718281828f) < 1e-6f, "expf");
  expect(min(-1, 2) == -1 && max(-1, 2) == 2 && max(1u, 0xFFFFFFFFu) == 0xFFFFFFFFu, "min, max");
  const int x = 7;
  expect(__ldg(&x) == 7, "ldg");
  expect(sizeof(uint4) == 16 && alignof(uint4) == 16 && alignof(float2) == 8, "vectors");
}

}  // namespace

int main() {
  test_atomics();
  test_tickets();
  test_two_hosts();
  test_thread_functions();
  return failures == 0 ? 0 : 1;
}
