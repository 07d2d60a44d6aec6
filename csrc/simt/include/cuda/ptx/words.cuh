// Stands in for csrc/cuda/ptx/words.cuh on the host.
#ifndef KVP_SIMT_CUDA_PTX_WORDS_CUH
#define KVP_SIMT_CUDA_PTX_WORDS_CUH

namespace kvp::cuda {

template <class Word>
Word load_word(const Word* from) {
  return *from;
}

template <class Word>
void store_word(Word* to, Word x) {
  *to = x;
}

}  // namespace kvp::cuda

#endif  // KVP_SIMT_CUDA_PTX_WORDS_CUH
