// The runtime as kernels see it; the headers in simt/cuda put CUDA's names on it.
#ifndef KVP_SIMT_DEVICE_H
#define KVP_SIMT_DEVICE_H

#include <cstddef>
#include <cstdint>
#include <source_location>

#include "simt/cuda/vector_types.h"

namespace kvp::simt {

constexpr int kWarpLanes = 32;

// A call in a kernel, to name it in errors and to tell one barrier from another.
using Site = std::source_location;

struct Coordinates {
  uint3 block_index;
  dim3 block_size;
  dim3 grid_size;
};

struct KernelThread {
  uint3 index;
  int lane;
  const Coordinates* coordinates;
};

// The kernel thread that runs on this OS thread, null outside of kernels. Fibers never move to
// another OS thread, and the model spares every threadIdx a call.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local KernelThread* current;

// A barrier of the block; returns for how many of its threads the predicate holds.
enum class BlockCall { kSync, kCount, kOr, kAnd };
int sync_block(BlockCall call, bool predicate, Site site);

// What the lanes of a mask do together. What a lane gets:
enum class WarpCall : uint8_t {
  kSync,     // nothing; orders memory, as no other call does
  kShuffle,  // the value of lane `source`, as with the other shuffles
  kShuffleXor,
  kShuffleUp,
  kShuffleDown,
  kBallot,  // the lanes whose value is not 0, as with any and all
  kAny,
  kAll,
  kMatchAny,   // the lanes that have the same value
  kReduceAdd,  // the sum, the least, the greatest of the values as int64
  kReduceMin,
  kReduceMax,
  kMma,
};
uint64_t join_warp(WarpCall call, uint32_t mask, uint64_t value, int source, Site site);

// mma.m16n8k16 by all lanes of a warp: d += a b. The fragments are those of the PTX ISA.
enum class HalfFormat { kBf16, kFp16 };
void multiply_fragments(HalfFormat format, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                        uint32_t b1, Site site);

// How far a thread has come in taking the pieces of its block's shared memory.
struct SharedCursor {
  int pieces = 0;
};
void* take_shared(SharedCursor& cursor, int64_t bytes, Site site);

// cp.async of 16 bytes.
void copy_async(void* shared, const void* global, Site site);
void commit_copies();
void wait_copies(uint32_t pending_groups);

// Fails unless the address is a multiple of `bytes`.
void check_aligned(const void* address, size_t bytes, Site site);

// __threadfence.
void fence();

}  // namespace kvp::simt

#endif  // KVP_SIMT_DEVICE_H
