// Barriers of a block and the memory fence. A barrier is known by the place of its call: threads
// of a block that wait at two different ones are an error.
#ifndef KVP_SIMT_CUDA_BLOCK_FUNCTIONS_H
#define KVP_SIMT_CUDA_BLOCK_FUNCTIONS_H

#include "simt/device.h"

inline void __syncthreads(kvp::simt::Site site = kvp::simt::Site::current()) {
  kvp::simt::sync_block(kvp::simt::BlockCall::kSync, false, site);
}

inline int __syncthreads_count(int predicate, kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::sync_block(kvp::simt::BlockCall::kCount, predicate != 0, site);
}

inline int __syncthreads_or(int predicate, kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::sync_block(kvp::simt::BlockCall::kOr, predicate != 0, site) > 0;
}

inline int __syncthreads_and(int predicate, kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::sync_block(kvp::simt::BlockCall::kAnd, predicate == 0, site) == 0;
}

inline void __threadfence() { kvp::simt::fence(); }

#endif  // KVP_SIMT_CUDA_BLOCK_FUNCTIONS_H
