// Fibers: what survives a switch, reuse of stacks, exceptions inside a fiber.
#include "simt/fiber.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "simt/stacks.h"

namespace {

using kvp::simt::Fiber;
using kvp::simt::Stacks;

constexpr int kFibers = 5;
int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  ++failures;
}

// Fibers that take turns, each `turns` times.
struct Ring {
  Fiber host;
  Fiber fibers[kFibers];
  std::string trace;
  int done = 0;
};

struct Member {
  Ring* ring;
  int number;
  int turns;
  double sum;

  void pass_on() { Fiber::switch_to(ring->fibers[number], ring->fibers[(number + 1) % kFibers]); }
};

[[noreturn]] void finish(Member& member) {
  Ring& ring = *member.ring;
  const bool last = ++ring.done == kFibers;
  Fiber::leave(ring.fibers[member.number],
               last ? ring.host : ring.fibers[(member.number + 1) % kFibers]);
}

void run_ring(Stacks& stacks, Ring& ring, Member (&members)[kFibers], Fiber::Entry entry) {
  ring.host.adopt_this_thread();
  for (int i = 0; i < kFibers; ++i) {
    ring.fibers[i].start(stacks[i], static_cast<size_t>(i) * 64, entry, &members[i]);
  }
  Fiber::switch_to(ring.host, ring.fibers[0]);
  for (Fiber& fiber : ring.fibers) fiber.forget();
}

// More live values than there are registers, integers and floats, over many switches.
void count(void* argument) {
  auto& member = *static_cast<Member*>(argument);
  uint64_t integers[12];
  double floats[12];
  for (int i = 0; i < 12; ++i) {
    integers[i] = static_cast<uint64_t>(member.number * 100 + i);
    floats[i] = std::sqrt(member.number * 100 + i);
  }
  for (int turn = 0; turn < member.turns; ++turn) {
    for (int i = 0; i < 12; ++i) {
      integers[i] = integers[i] * 3 + 1;
      floats[i] = floats[i] * 0.5 + 1;
    }
    if (turn < 2) member.ring->trace += static_cast<char>('a' + member.number);
    member.pass_on();
  }
  for (int i = 0; i < 12; ++i) member.sum += static_cast<double>(integers[i] % 1000) + floats[i];
  finish(member);
}

double expected_sum(int number, int turns) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) {
    auto integer = static_cast<uint64_t>(number * 100 + i);
    double real = std::sqrt(number * 100 + i);
    for (int turn = 0; turn < turns; ++turn) {
      integer = integer * 3 + 1;
      real = real * 0.5 + 1;
    }
    sum += static_cast<double>(integer % 1000) + real;
  }
  return sum;
}

void test_values_survive(Stacks& stacks) {
  constexpr int kTurns = 1000;
  Ring ring;
  Member members[kFibers];
  for (int i = 0; i < kFibers; ++i) members[i] = {&ring, i, kTurns, 0};
  run_ring(stacks, ring, members, count);
  expect(ring.trace == "abcdeabcde", "fibers run in the order of the switches");
  for (const Member& member : members) {
    expect(member.sum == expected_sum(member.number, kTurns), "values survive switches");
  }
}

// An exception goes no further than its own fiber, whatever others do meanwhile.
void throw_and_catch(void* argument) {
  auto& member = *static_cast<Member*>(argument);
  try {
    member.pass_on();
    throw std::runtime_error("thrown by " + std::to_string(member.number));
  } catch (const std::runtime_error& error) {
    member.sum = error.what() == "thrown by " + std::to_string(member.number) ? 1 : 0;
  }
  member.pass_on();
  finish(member);
}

void test_exceptions(Stacks& stacks) {
  Ring ring;
  Member members[kFibers];
  for (int i = 0; i < kFibers; ++i) members[i] = {&ring, i, 0, 0};
  run_ring(stacks, ring, members, throw_and_catch);
  for (const Member& member : members) expect(member.sum == 1, "exceptions stay in their fiber");
}

// Most of a stack is there to be used, and stacks are apart.
void fill_stack(void* argument) {
  auto& member = *static_cast<Member*>(argument);
  volatile char filler[kvp::simt::kStackBytes - (16 << 10)];
  for (size_t i = 0; i < sizeof(filler); i += 64) filler[i] = static_cast<char>(member.number);
  member.pass_on();
  member.sum = 1;
  for (size_t i = 0; i < sizeof(filler); i += 64) {
    if (filler[i] != member.number) member.sum = 0;
  }
  finish(member);
}

void test_stacks_are_apart(Stacks& stacks) {
  Ring ring;
  Member members[kFibers];
  for (int i = 0; i < kFibers; ++i) members[i] = {&ring, i, 0, 0};
  run_ring(stacks, ring, members, fill_stack);
  for (const Member& member : members) expect(member.sum == 1, "stacks are apart");
}

// The machine's own rule for calls: aligned vectors on a fiber's stack must not fault.
void use_aligned_memory(void* argument) {
  auto& member = *static_cast<Member*>(argument);
  alignas(64) volatile float lanes[16] = {};
  member.sum = reinterpret_cast<uintptr_t>(&lanes[0]) % 64 == 0 ? 1 : 0;
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f %d", std::sqrt(2.0), member.number);
  if (std::string(text) != "1.414 " + std::to_string(member.number)) member.sum = 0;
  finish(member);
}

void test_alignment(Stacks& stacks) {
  Ring ring;
  Member members[kFibers];
  for (int i = 0; i < kFibers; ++i) members[i] = {&ring, i, 0, 0};
  run_ring(stacks, ring, members, use_aligned_memory);
  for (const Member& member : members) expect(member.sum == 1, "stacks are aligned");
}

}  // namespace

int main() {
  Stacks stacks;
  stacks.reserve(2);
  stacks.reserve(kFibers);  // later ones are added, the first stay
  for (int again = 0; again < 3; ++again) {
    test_values_survive(stacks);
    test_exceptions(stacks);
    test_stacks_are_apart(stacks);
    test_alignment(stacks);
    if (again == 1) stacks.renew(kFibers);
  }
  return failures == 0 ? 0 : 1;
}
