// Falsifies the runtime: kernels with a bug that real ones could have, each beside its right form.
//
//   planted_bugs BUG           runs the kernel with the bug; fails if that is noticed
//   planted_bugs BUG fixed     runs its right form; fails if there is anything to notice
//   planted_bugs fixed         runs all right forms
//
// A bug is noticed if a launch fails or the result is wrong with any of the schedules. Races that
// change no result here are for the build with TSan to find.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/ticket.cuh"
#include "cuda/shared_memory.cuh"
#include "testing.h"

namespace {

using kvp::cuda::Bf16;
using kvp::cuda::SharedMemory;
using namespace simt_test;

constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kWarp = 32;

// What a run came to: empty if all is well.
using Outcome = std::string;

template <class... P>
Outcome launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
               std::type_identity_t<P>... arguments) {
  const cudaError_t status = run(kernel, grid, block, shared_bytes, arguments...);
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

Outcome compare(double actual, double expected) {
  if (std::abs(actual - expected) <= 1e-3 * std::abs(expected)) return "";
  return "wrong result: " + std::to_string(actual) + ", expected " + std::to_string(expected);
}

Outcome first_of(const Outcome& a, const Outcome& b) { return a.empty() ? b : a; }

__device__ float sum_of_warp(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

// ---- A block's sum through shared memory, and no barrier between writing and reading it. --------

constexpr int kWarps = 8;

template <bool kBug>
__global__ void reduce(const float* in, float* out) {
  SharedMemory shared;
  float* const sums = shared.take<float>(kWarps);
  const float sum = sum_of_warp(in[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  if (!kBug) __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int i = 0; i < kWarps; ++i) total += sums[i];
    out[blockIdx.x] = total;
  }
}

template <bool kBug>
Outcome missing_barrier() {
  constexpr int kBlocks = 3, kThreads = kWarps * kWarp;
  const std::vector<float> in(kBlocks * kThreads, 1.0f);
  float out[kBlocks] = {};
  const Outcome outcome =
      launch(reduce<kBug>, kBlocks, kThreads, kWarps * sizeof(float), in.data(), out);
  return first_of(outcome, compare(out[0] + out[1] + out[2], kBlocks * kThreads));
}

// ---- Tiles for mma through a ring of two stages, used before they are waited for. ---------------

constexpr int kDepth = 64, kTileDepth = 16, kRows = 16, kColumns = 8;
constexpr int kStageWords = (kRows + kColumns) * kTileDepth / 2;

// a is [kRows][kDepth], b [kColumns][kDepth].
template <bool kBug>
__global__ void multiply(const uint16_t* a, const uint16_t* b, float* out) {
  SharedMemory shared;
  uint32_t* const ring = shared.take<uint32_t>(2 * kStageWords);
  const int lane = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int tile) {
    uint32_t* const stage = ring + tile % 2 * kStageWords;
    for (int piece = lane; piece < (kRows + kColumns) * 2; piece += kWarp) {
      const int row = piece / 2;
      const uint16_t* from = row < kRows ? a + row * kDepth : b + (row - kRows) * kDepth;
      kvp::cuda::cp_async_16(stage + piece * 4, from + tile * kTileDepth + piece % 2 * 8);
    }
    kvp::cuda::cp_async_commit();
  };
  float d[4] = {};
  fetch(0);
  for (int tile = 0; tile < kDepth / kTileDepth; ++tile) {
    if (tile + 1 < kDepth / kTileDepth) {
      fetch(tile + 1);
    } else {
      kvp::cuda::cp_async_commit();
    }
    if (!kBug) kvp::cuda::cp_async_wait<1>();
    __syncthreads();
    const uint32_t* const stage = ring + tile % 2 * kStageWords;
    const int g = lane / 4, q = lane % 4;
    const auto word = [&](int row, int pair) { return stage[row * kTileDepth / 2 + pair]; };
    const uint32_t fragment[4] = {word(g, q), word(g + 8, q), word(g, q + 4), word(g + 8, q + 4)};
    kvp::cuda::mma_m16n8k16<Bf16>(d, fragment, word(kRows + g, q), word(kRows + g, q + 4));
    __syncthreads();
    if (kBug) kvp::cuda::cp_async_wait<0>();  // too late
  }
  kvp::cuda::cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = d[i];
}

template <bool kBug>
Outcome missing_wait() {
  alignas(16) uint16_t a[kRows * kDepth], b[kColumns * kDepth];
  for (auto& x : a) x = static_cast<uint16_t>(kvp::cuda::pack<Bf16>(0.5f, 0));
  for (auto& x : b) x = static_cast<uint16_t>(kvp::cuda::pack<Bf16>(2.0f, 0));
  float out[kRows * kColumns];
  const Outcome outcome =
      launch(multiply<kBug>, 1, kWarp, 2 * kStageWords * sizeof(uint32_t), a, b, out);
  return first_of(outcome, compare(std::accumulate(std::begin(out), std::end(out), 0.0),
                                   kRows * kColumns * kDepth));
}

// ---- The last block sums what all blocks wrote, by a ticket that orders nothing. ----------------

template <bool kBug>
__global__ void reduce_grid(const float* in, float* partial, uint32_t* ticket, float* out) {
  SharedMemory shared;
  bool* const is_last = shared.take<bool>(1);
  const float sum = sum_of_warp(in[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    const uint32_t taken = kBug ? atomicAdd(ticket, 1) : kvp::cuda::take_ticket(ticket);
    *is_last = taken + 1 == gridDim.x;
  }
  __syncthreads();
  if (!*is_last) return;
  const float total = sum_of_warp(threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0);
  if (threadIdx.x == 0) *out = total;
}

template <bool kBug>
Outcome ticket_without_release() {
  constexpr int kBlocks = 20;
  const std::vector<float> in(kBlocks * kWarp, 1.0f);
  std::vector<float> partial(kBlocks);
  uint32_t ticket = 0;
  float out = 0;
  const Outcome outcome =
      launch(reduce_grid<kBug>, kBlocks, kWarp, 16, in.data(), partial.data(), &ticket, &out);
  return first_of(outcome, compare(out, kBlocks * kWarp));
}

// ---- One element more than the piece has. -------------------------------------------------------

template <bool kBug>
__global__ void reverse(const int* in, int* out) {
  SharedMemory shared;
  const int n = static_cast<int>(blockDim.x);
  int* const values = shared.take<int>(n);
  int* const others = shared.take<int>(4);
  if (threadIdx.x < 4) others[threadIdx.x] = 0;
  __syncthreads();
  values[n - static_cast<int>(threadIdx.x) - (kBug ? 0 : 1)] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}

template <bool kBug>
Outcome shared_overrun() {
  constexpr int kThreads = 64;
  std::vector<int> in(kThreads, 3), out(kThreads);
  const Outcome outcome =
      launch(reverse<kBug>, 1, kThreads, (kThreads + 4) * sizeof(int), in.data(), out.data());
  return first_of(outcome, compare(out[kThreads - 1], 3));
}

// ---- Compaction in place that stores before its tile is loaded. ---------------------------------

template <bool kBug>
__global__ void compact(int* values, const int* target, int n) {
  const int size = static_cast<int>(blockDim.x);
  for (int base = 0; base < n; base += size) {
    const int i = base + static_cast<int>(threadIdx.x);
    const int value = values[i];
    if (!kBug) __syncthreads();
    if (target[i] >= 0) values[target[i]] = value;
    __syncthreads();
  }
}

template <bool kBug>
Outcome early_store() {
  constexpr int kThreads = 96, kValues = 5 * kThreads;
  std::vector<int> values(kValues), target(kValues, -1);
  int kept = 0;
  for (int i = 0; i < kValues; ++i) {
    values[i] = i;
    if (i % 3 == 1) target[i] = kept++;
  }
  const Outcome outcome =
      launch(compact<kBug>, 1, kThreads, 0, values.data(), target.data(), kValues);
  if (!outcome.empty()) return outcome;
  for (int i = 0; i < kept; ++i) {
    if (values[i] != 3 * i + 1) return compare(values[i], 3 * i + 1);
  }
  return "";
}

// ---- A barrier in a branch that not all threads take. -------------------------------------------

template <bool kBug>
__global__ void scale(float* values) {
  if (values[threadIdx.x] < 0) {
    values[threadIdx.x] = 0;
    if (kBug) __syncthreads();
  }
  __syncthreads();
  values[threadIdx.x] += 1;
}

template <bool kBug>
Outcome divergent_barrier() {
  std::vector<float> values(64, 1.0f);
  values[9] = -1;
  const Outcome outcome = launch(scale<kBug>, 1, 64, 0, values.data());
  return first_of(outcome, compare(values[9], 1));
}

// ---- A warp's sum after lanes beyond the end have returned. -------------------------------------

template <bool kBug>
__global__ void sum_tail(const float* in, int n, float* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (kBug && i >= n) return;
  const float sum = sum_of_warp(i < n ? in[i] : 0);
  if (i == 0) *out = sum;
}

template <bool kBug>
Outcome exited_lane() {
  const std::vector<float> in(20, 1.0f);
  float out = 0;
  const Outcome outcome = launch(sum_tail<kBug>, 1, kWarp, 0, in.data(), 20, &out);
  return first_of(outcome, compare(out, 20));
}

// ---- Lanes wait for their warp where others wait for the block. ---------------------------------

template <bool kBug>
__global__ void meet(int* out) {
  if (!kBug || threadIdx.x % kWarp < 8) __syncwarp();
  __syncthreads();
  out[threadIdx.x] = 1;
}

template <bool kBug>
Outcome deadlock() {
  std::vector<int> out(64);
  const Outcome outcome = launch(meet<kBug>, 1, 64, 0, out.data());
  return first_of(outcome, compare(out[63], 1));
}

struct Case {
  const char* name;
  Outcome (*with_bug)();
  Outcome (*fixed)();
};

const Case kCases[] = {
    {"missing_barrier", missing_barrier<true>, missing_barrier<false>},
    {"missing_wait", missing_wait<true>, missing_wait<false>},
    {"ticket_without_release", ticket_without_release<true>, ticket_without_release<false>},
    {"shared_overrun", shared_overrun<true>, shared_overrun<false>},
    {"early_store", early_store<true>, early_store<false>},
    {"divergent_barrier", divergent_barrier<true>, divergent_barrier<false>},
    {"exited_lane", exited_lane<true>, exited_lane<false>},
    {"deadlock", deadlock<true>, deadlock<false>},
};

const Case* find_case(const char* name) {
  for (const Case& candidate : kCases) {
    if (std::strcmp(candidate.name, name) == 0) return &candidate;
  }
  return nullptr;
}

bool is_noticed(Outcome (*launches)()) {
  bool noticed = false;
  for (const kvp::simt::Options& options : kSchedules) {
    kvp::simt::configure(options);
    const Outcome outcome = launches();
    std::printf("%s: %s\n", name_of(options).c_str(),
                outcome.empty() ? "nothing noticed" : outcome.c_str());
    noticed |= !outcome.empty();
  }
  return noticed;
}

bool is_any_noticed_when_fixed() {
  bool noticed = false;
  for (const Case& each : kCases) noticed |= is_noticed(each.fixed);
  return noticed;
}

}  // namespace

int main(int count, char** arguments) {
  const bool fixed = count > 1 && std::strcmp(arguments[count - 1], "fixed") == 0;
  if (fixed && count == 2) return is_any_noticed_when_fixed() ? 1 : 0;
  const Case* const chosen = count > 1 ? find_case(arguments[1]) : nullptr;
  if (chosen == nullptr || count > (fixed ? 3 : 2)) {
    std::printf("usage: planted_bugs [BUG] [fixed]\n");
    return 2;
  }
  return is_noticed(fixed ? chosen->fixed : chosen->with_bug) ? 1 : 0;
}
