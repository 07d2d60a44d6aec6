// Everything that a block of threads can do wrong together is named, with the threads that wait.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "cuda/ptx/mma.cuh"
#include "cuda/shared_memory.cuh"
#include "testing.h"

namespace {

using kvp::cuda::SharedMemory;
using namespace simt_test;

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__global__ void two_barriers() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void two_kinds_of_barrier() {
  if (threadIdx.x % 2 == 0)
    __syncthreads_count(1);
  else
    __syncthreads_or(1);
}

__global__ void leave_before_barrier() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}

__global__ void mask_without_own_lane() { __syncwarp(0xFFFFFFFEu); }

__global__ void leave_before_shuffle(int* out) {
  if (threadIdx.x == 5) return;
  *out = __shfl_sync(kAllLanes, 1, 0);
}

__global__ void name_absent_lane(int* out) { *out = __any_sync(kAllLanes, 1); }

__global__ void different_calls(unsigned* out) {
  if (threadIdx.x < 16)
    *out = __ballot_sync(kAllLanes, 1);
  else
    *out = __match_any_sync(kAllLanes, 1);
}

__global__ void different_shuffles(int* out) {
  if (threadIdx.x < 16)
    *out = __shfl_up_sync(kAllLanes, 1, 1);
  else
    *out = __shfl_down_sync(kAllLanes, 1, 1);
}

__global__ void read_outside_mask(int* out) {
  if (threadIdx.x < 16) *out = __shfl_xor_sync(0xFFFFu, 1, 16);
}

__global__ void two_products() {
  float d[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x < 8) {
    kvp::cuda::mma_m16n8k16<kvp::cuda::Bf16>(d, a, 0, 0);
  } else {
    kvp::cuda::mma_m16n8k16<kvp::cuda::Bf16>(d, a, 0, 0);
  }
}

__global__ void half_a_product() {
  float d[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x < 16) kvp::cuda::mma_m16n8k16<kvp::cuda::Fp16>(d, a, 0, 0);
}

__global__ void wait_in_different_places() {
  if (threadIdx.x < 16)
    __syncwarp();
  else
    __syncthreads();
}

__global__ void wait_for_each_other() { __syncwarp(threadIdx.x == 0 ? 0x3u : 0x7u); }

__global__ void too_much_shared_memory() {
  SharedMemory shared;
  shared.take<int>(4);
  shared.take<int>(13);  // 52 bytes are 64
}

__global__ void different_pieces() {
  SharedMemory shared;
  if (threadIdx.x == 7)
    shared.take<int64_t>(3);
  else
    shared.take<int>(4);
}

__global__ void write_past_piece(int at, bool barrier) {
  SharedMemory shared;
  int* const piece = shared.take<int>(5);
  shared.take<int>(4);
  if (threadIdx.x == 0) piece[at] = -1;  // what pieces begin as
  if (barrier) __syncthreads();
  if (threadIdx.x == 1) piece[at] = piece[0];
}

__global__ void repair_after_barrier() {
  SharedMemory shared;
  int* const piece = shared.take<int>(4);
  int before = 0;
  if (threadIdx.x == 0) {
    before = piece[4];
    piece[4] = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) piece[4] = before;
}

void test_barriers() {
  expect_error("divergent barriers: __syncthreads (errors_test.cpp:", two_barriers, 1, 64, 0);
  expect_error(
      "\n  by thread (40, 0, 0) of block (0, 0, 0)"
      "\n  threads 0-39: wait at __syncthreads (errors_test.cpp:",
      two_barriers, 1, 64, 0);
  expect_error("\n  threads 40: here\n  threads 41-63: can run", two_barriers, 1, 64, 0);
  expect_error("divergent barriers: __syncthreads_or", two_kinds_of_barrier, 1, 64, 0);
  expect_error("exited threads at a barrier: return while others wait at __syncthreads",
               leave_before_barrier, 1, 64, 0);
  kvp::simt::configure({kvp::simt::Schedule::kDescending, 0, 1});
  expect_error("exited threads at a barrier: __syncthreads (errors_test.cpp:", leave_before_barrier,
               1, 6, 0);
  expect_error("which 1 of 6 threads can never reach", leave_before_barrier, 1, 6, 0);
  kvp::simt::configure({});
}

void test_masks() {
  int out = 0;
  unsigned bits = 0;
  expect_error("mask without its own lane: lane 0 calls __syncwarp", mask_without_own_lane, 1, 32,
               0);
  expect_error("exited lane in a mask: return while lane 0 waits for this one in __shfl_sync",
               leave_before_shuffle, 1, 32, 0, &out);
  kvp::simt::configure({kvp::simt::Schedule::kRandom, 4, 1});
  expect_error("exited lane in a mask", leave_before_shuffle, 1, 32, 0, &out);
  kvp::simt::configure({});
  expect_error("absent lane in a mask: __any_sync (errors_test.cpp:", name_absent_lane, 1, 40, 0,
               &out);
  expect_error("which names lane 8", name_absent_lane, 1, 40, 0, &out);
  expect_error("shuffle from a lane outside the mask: lane 0 calls __shfl_xor_sync",
               read_outside_mask, 1, 32, 0, &out);
  expect_error("different calls by lanes of one mask: lane 31 calls __match_any_sync",
               different_calls, 1, 32, 0, &bits);
  expect_error("different calls by lanes of one mask", different_shuffles, 1, 32, 0, &out);
  expect_error("different mma calls by lanes of a warp", two_products, 1, 32, 0);
  expect_error("exited lane in a mask", half_a_product, 1, 32, 0);
}

void test_deadlocks() {
  expect_error("deadlock", wait_in_different_places, 1, 32, 0);
  expect_error("\n  threads 0-15: wait in __syncwarp", wait_in_different_places, 1, 32, 0);
  expect_error("\n  threads 16-31: wait at __syncthreads", wait_in_different_places, 1, 32, 0);
  expect_error("deadlock", wait_for_each_other, 1, 3, 0);
  expect_error("mask 0x00000003\n  threads 1-2: wait in", wait_for_each_other, 1, 3, 0);
}

void test_shared_memory() {
  expect_error("shared memory exhausted: a piece of 52 bytes, rounded up to 16 (errors_test.cpp:",
               too_much_shared_memory, 1, 32, 79);
  expect_error("as number 2, where 63 bytes", too_much_shared_memory, 1, 32, 79);
  expect_runs("too_much_shared_memory", too_much_shared_memory, 1, 32, 80);
  expect_error("different pieces of shared memory in one place: 24 bytes (errors_test.cpp:",
               different_pieces, 1, 32, 64);
  expect_error("shared memory overrun: byte 0 past the end of a piece of 20 (errors_test.cpp:",
               write_past_piece, 1, 32, 64, 5, true);
  expect_error("shared memory overrun: byte 60 past the end of a piece of 20", write_past_piece, 1,
               32, 64, 20, false);
  expect_runs("write_past_piece", write_past_piece, 1, 32, 64, 4, true);
  expect_error("shared memory overrun: byte 0 past the end of a piece of 16", repair_after_barrier,
               1, 32, 16);
}

[[gnu::noinline]] int recurse(int depth) {
  volatile char frame[1024];
  frame[depth % 1024] = 1;
  return depth > 0 ? recurse(depth - 1) + frame[0] : frame[0];
}

__global__ void use_stack(int depth, int* out) {
  const int x = recurse(depth);
  if (threadIdx.x == 9) *out = x;
}

// Runs in a process of its own, which dies of it.
void test_stack_overflow() {
  int out = 0;
  expect_runs("use_stack", use_stack, 1, 32, 0, 150, &out);
  int ends[2];
  expect(pipe(ends) == 0, "a pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    run(use_stack, 1, 32, 0, 100000, &out);
    _exit(0);
  }
  close(ends[1]);
  std::string message;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    message.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the overflow is fatal");
  expect(message.find("simt: stack overflow: more than 262144 bytes\n"
                      "  by thread (0, 0, 0) of block (0, 0, 0)") != std::string::npos,
         "the overflow is named: '%s'", message.c_str());
}

}  // namespace

int main() {
  test_barriers();
  test_masks();
  test_deadlocks();
  test_shared_memory();
  test_stack_overflow();
  return failures == 0 ? 0 : 1;
}
