// What the tests of the simt runtime share: expectations, launches, schedules.
#ifndef KVP_TESTS_CPP_SIMT_TESTING_H
#define KVP_TESTS_CPP_SIMT_TESTING_H

#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <string>
#include <tuple>
#include <type_traits>

#include "simt/launch.h"
#include "simt/options.h"

namespace simt_test {

inline int failures = 0;

[[gnu::format(printf, 2, 3)]] inline void expect(bool holds, const char* format, ...) {
  if (holds) return;
  std::va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
  ++failures;
}

// kernel<<<grid, block, shared_bytes>>>(arguments...)
template <class... P>
cudaError_t run(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                std::type_identity_t<P>... arguments) {
  void* addresses[] = {const_cast<std::remove_const_t<P>*>(&arguments)..., nullptr};
  return cudaLaunchKernel(kernel, grid, block, addresses, shared_bytes);
}

template <class... P>
void expect_runs(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                 std::type_identity_t<P>... arguments) {
  const cudaError_t status = run(kernel, grid, block, shared_bytes, arguments...);
  expect(status == cudaSuccess, "%s: %s", name, cudaGetErrorString(status));
}

// The launch must fail with an error that contains `message`.
template <class... P>
void expect_error(const std::string& message, void (*kernel)(P...), dim3 grid, dim3 block,
                  size_t shared_bytes, std::type_identity_t<P>... arguments) {
  const cudaError_t status = run(kernel, grid, block, shared_bytes, arguments...);
  const std::string actual =
      status == cudaErrorLaunchFailure ? kvp::simt::last_error() : "no launch failure";
  expect(actual.find(message) != std::string::npos, "expected '%s', got '%s'", message.c_str(),
         actual.c_str());
}

inline const kvp::simt::Options kSchedules[] = {
    {kvp::simt::Schedule::kAscending, 0, 1}, {kvp::simt::Schedule::kDescending, 0, 1},
    {kvp::simt::Schedule::kRandom, 1, 1},    {kvp::simt::Schedule::kRandom, 2, 3},
    {kvp::simt::Schedule::kRandom, 3, 1},
};

inline std::string name_of(const kvp::simt::Options& options) {
  switch (options.schedule) {
    case kvp::simt::Schedule::kAscending:
      return "ascending";
    case kvp::simt::Schedule::kDescending:
      return "descending";
    case kvp::simt::Schedule::kRandom:
      break;
  }
  return "random, seed " + std::to_string(options.seed);
}

template <class Body>
void under_all_schedules(Body body) {
  for (const kvp::simt::Options& options : kSchedules) {
    kvp::simt::configure(options);
    const int before = failures;
    body();
    if (failures > before) std::printf("  with the %s schedule\n", name_of(options).c_str());
  }
  kvp::simt::configure({});
}

}  // namespace simt_test

#endif  // KVP_TESTS_CPP_SIMT_TESTING_H
