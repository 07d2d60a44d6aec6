// Collective calls of a warp against what CUDA documents of them, for whole warps, partial ones and
// groups of lanes that go separate ways.
#include <cstdint>
#include <cstring>
#include <vector>

#include "testing.h"

namespace {

using namespace simt_test;

constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kWidths[] = {1, 2, 4, 8, 16, 32};
constexpr int kOperands = 40;  // source lanes, deltas and masks that are tried

int segment_of(int lane, int width) { return lane / width; }

// What CUDA documents: the lane that each shuffle reads, in segments of `width` lanes; lanes whose
// source lies outside their segment keep their own value. xor may also reach an earlier segment.
int source_of_shfl(int lane, int operand, int width) {
  return segment_of(lane, width) * width + operand % width;
}
int source_of_xor(int lane, int operand, int width) {
  const int source = lane ^ operand;
  return segment_of(source, width) <= segment_of(lane, width) ? source : lane;
}
int source_of_up(int lane, int operand, int width) {
  const int source = lane - operand;
  return source >= 0 && segment_of(source, width) == segment_of(lane, width) ? source : lane;
}
int source_of_down(int lane, int operand, int width) {
  const int source = lane + operand;
  return segment_of(source, width) == segment_of(lane, width) ? source : lane;
}

template <class T>
T value_of(int lane) {
  return static_cast<T>(lane * 1000003LL - 7);
}

// out[kind][lane]
template <class T>
__global__ void shuffles(int operand, int width, T (*out)[32]) {
  const int lane = static_cast<int>(threadIdx.x);
  const T value = value_of<T>(lane);
  out[0][lane] = __shfl_sync(kAllLanes, value, operand, width);
  out[1][lane] = __shfl_xor_sync(kAllLanes, value, operand % 32, width);
  out[2][lane] = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(operand), width);
  out[3][lane] = __shfl_down_sync(kAllLanes, value, static_cast<unsigned>(operand), width);
}

template <class T>
void test_shuffles() {
  for (const int width : kWidths) {
    for (int operand = 0; operand < kOperands; operand += width > 4 ? 1 : 7) {
      T out[4][32];
      expect_runs("shuffles", shuffles<T>, 1, 32, 0, operand, width, out);
      for (int lane = 0; lane < 32; ++lane) {
        const int sources[] = {
            source_of_shfl(lane, operand, width), source_of_xor(lane, operand % 32, width),
            source_of_up(lane, operand, width), source_of_down(lane, operand, width)};
        for (int kind = 0; kind < 4; ++kind) {
          expect(out[kind][lane] == value_of<T>(sources[kind]),
                 "shuffle %d of lane %d with %d, width %d: expected the value of lane %d", kind,
                 lane, operand, width, sources[kind]);
        }
      }
    }
  }
}

// The low lanes of the last warp of a block that is no multiple of 32.
struct Answers {
  unsigned ballot;
  int any;
  int all;
  unsigned match32;
  unsigned match64;
  unsigned sum;
  int least;
  unsigned most;
};

__global__ void votes(unsigned mask, unsigned yes, Answers* out) {
  const int lane = static_cast<int>(threadIdx.x);
  if ((mask >> lane & 1) == 0) return;
  const int predicate = static_cast<int>(yes & 1u << lane);
  Answers& answers = out[lane];
  answers.ballot = __ballot_sync(mask, predicate);
  answers.any = __any_sync(mask, predicate);
  answers.all = __all_sync(mask, predicate);
  answers.match32 = __match_any_sync(mask, lane % 3);
  answers.match64 = __match_any_sync(mask, static_cast<uint64_t>(lane % 5) << 40);
  answers.sum = __reduce_add_sync(mask, 0xF0000000u + threadIdx.x);
  answers.least = __reduce_min_sync(mask, 10 - lane);
  answers.most = __reduce_max_sync(mask, 0x80000000u - threadIdx.x);
}

Answers expected_answers(int lane, unsigned mask, unsigned yes) {
  Answers answers{mask & yes, (mask & yes) != 0, (mask & yes) == mask, 0, 0, 0, 100, 0};
  for (int other = 0; other < 32; ++other) {
    if ((mask >> other & 1) == 0) continue;
    if (other % 3 == lane % 3) answers.match32 |= 1u << other;
    if (other % 5 == lane % 5) answers.match64 |= 1u << other;
    answers.sum += 0xF0000000u + static_cast<unsigned>(other);
    answers.least = 10 - other < answers.least ? 10 - other : answers.least;
    const unsigned value = 0x80000000u - static_cast<unsigned>(other);
    answers.most = value > answers.most ? value : answers.most;
  }
  return answers;
}

void test_votes() {
  for (const unsigned mask : {kAllLanes, 0x1u, 0x000FF0F0u, 0x80000001u}) {
    for (const unsigned yes : {0u, kAllLanes, 0x00010010u, 0x80000000u}) {
      Answers out[32];
      expect_runs("votes", votes, 1, 32, 0, mask, yes, &out[0]);
      for (int lane = 0; lane < 32; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        const Answers expected = expected_answers(lane, mask, yes);
        expect(std::memcmp(&out[lane], &expected, sizeof(Answers)) == 0,
               "votes of lane %d with mask 0x%08x, yes 0x%08x", lane, mask, yes);
      }
    }
  }
}

// Lanes form groups by lane % groups that take different numbers of steps and meet in between. A
// group that is ahead must not disturb what a slow lane has yet to read.
__global__ void separate_ways(int groups, unsigned* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned mask = 0;
  for (int other = lane % groups; other < 32; other += groups) mask |= 1u << other;
  unsigned value = static_cast<unsigned>(lane);
  for (int round = 0; round < 4; ++round) {
    for (int step = 0; step <= lane % groups; ++step) {
      value += __shfl_sync(mask, value, lane % groups);
      __syncwarp(mask);
    }
    value += __shfl_xor_sync(kAllLanes, value, 1);
  }
  out[threadIdx.x] = value;
}

void test_separate_ways() {
  for (const int groups : {1, 2, 5, 32}) {
    std::vector<unsigned> out(96);
    expect_runs("separate_ways", separate_ways, 1, 96, 0, groups, out.data());
    unsigned values[32];
    for (unsigned lane = 0; lane < 32; ++lane) values[lane] = lane;
    for (int round = 0; round < 4; ++round) {
      for (int group = 0; group < groups; ++group) {
        for (int step = 0; step <= group; ++step) {
          const unsigned first = values[group];
          for (int lane = group; lane < 32; lane += groups) values[lane] += first;
        }
      }
      unsigned before[32];
      std::memcpy(before, values, sizeof(values));
      for (int lane = 0; lane < 32; ++lane) values[lane] += before[lane ^ 1];
    }
    for (int i = 0; i < 96; ++i) {
      expect(out[i] == values[i % 32], "%d groups: thread %d has %u, expected %u", groups, i,
             out[i], values[i % 32]);
    }
  }
}

// Of a warp that has only 8 lanes.
__global__ void partial_warp(unsigned* out) {
  const unsigned mask = threadIdx.x < 32 ? kAllLanes : 0xFFu;
  out[threadIdx.x] = __ballot_sync(mask, 1) + __reduce_add_sync(mask, 1u);
}

void test_partial_warp() {
  unsigned out[40];
  expect_runs("partial_warp", partial_warp, 1, 40, 0, &out[0]);
  expect(out[0] == kAllLanes + 32 && out[39] == 0xFF + 8, "a warp of 8 lanes");
}

}  // namespace

int main() {
  under_all_schedules([] {
    test_votes();
    test_separate_ways();
    test_partial_warp();
  });
  test_shuffles<float>();
  test_shuffles<int64_t>();
  return failures == 0 ? 0 : 1;
}
