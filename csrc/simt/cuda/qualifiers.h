// The words that CUDA adds to declarations. __shared__ is not among them: a variable of one fiber
// would take the place of one per block, so kernels take theirs from SharedMemory.
#ifndef KVP_SIMT_CUDA_QUALIFIERS_H
#define KVP_SIMT_CUDA_QUALIFIERS_H

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// No more than a hint here: small frames and short compilations are worth more than inlining.
#define __forceinline__ inline

#endif  // KVP_SIMT_CUDA_QUALIFIERS_H
