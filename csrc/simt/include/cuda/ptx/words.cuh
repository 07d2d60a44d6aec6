// Stands in for csrc/cuda/ptx/words.cuh on the host.
#ifndef KVP_SIMT_CUDA_PTX_WORDS_CUH
#define KVP_SIMT_CUDA_PTX_WORDS_CUH

#include "simt/device.h"

namespace kvp::cuda {

template <class Word>
Word load_word(const Word* from, simt::Site site = simt::Site::current()) {
  simt::check_aligned(from, sizeof(Word), site);
  return *from;
}

template <class Word>
void store_word(Word* to, Word x, simt::Site site = simt::Site::current()) {
  simt::check_aligned(to, sizeof(Word), site);
  *to = x;
}

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_WORDS_CUH
