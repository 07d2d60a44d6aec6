// Where a thread is.
#ifndef KVP_SIMT_CUDA_THREAD_INDEX_H
#define KVP_SIMT_CUDA_THREAD_INDEX_H

#include "simt/device.h"

#define threadIdx (::kvp::simt::current->index)
#define blockIdx (::kvp::simt::current->coordinates->block_index)
#define blockDim (::kvp::simt::current->coordinates->block_size)
#define gridDim (::kvp::simt::current->coordinates->grid_size)

constexpr int warpSize = kvp::simt::kWarpLanes;

#endif  // KVP_SIMT_CUDA_THREAD_INDEX_H
