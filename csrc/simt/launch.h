// Runs all blocks of a kernel.
#ifndef KVP_SIMT_LAUNCH_H
#define KVP_SIMT_LAUNCH_H

#include <cstddef>
#include <string>

#include "simt/cuda/vector_types.h"

namespace kvp::simt {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
};

// run(bound) is what every thread does.
struct KernelCall {
  void (*run)(const void* bound);
  const void* bound;
};

// Runs the kernel to its end, on this OS thread and as many others as the options say. Returns what
// it did wrong, empty if nothing. The first error ends the launch: its block is abandoned, blocks
// that others have begun are finished. Throws std::bad_alloc.
std::string launch(const LaunchShape& shape, KernelCall call);

// What went wrong in this host thread's last failed launch, until the next one fails.
const char* last_error();

}  // namespace kvp::simt

#endif  // KVP_SIMT_LAUNCH_H
