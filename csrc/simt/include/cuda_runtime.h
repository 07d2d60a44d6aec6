// Stands in for CUDA's header of this name where kernels are compiled for the host.
#ifndef KVP_SIMT_CUDA_RUNTIME_H
#define KVP_SIMT_CUDA_RUNTIME_H

#include "simt/cuda/atomics.h"
#include "simt/cuda/block_functions.h"
#include "simt/cuda/qualifiers.h"
#include "simt/cuda/runtime_api.h"
#include "simt/cuda/thread_functions.h"
#include "simt/cuda/thread_index.h"
#include "simt/cuda/vector_types.h"
#include "simt/cuda/warp_functions.h"

#endif  // KVP_SIMT_CUDA_RUNTIME_H
