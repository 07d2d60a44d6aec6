// Words of global memory: right where they are aligned, refused where a device would fault.
#include "cuda/ptx/words.cuh"

#include "testing.h"

namespace {

using namespace simt_test;

template <class Word>
__global__ void copy(const Word* from, Word* to) {
  kvp::cuda::store_word(to + threadIdx.x, kvp::cuda::load_word(from + threadIdx.x));
}

template <class Word>
void test_word(const char* misaligned) {
  alignas(16) unsigned char from[64 * sizeof(Word) + 16], to[sizeof from] = {};
  for (unsigned i = 0; i < sizeof from; ++i) from[i] = static_cast<unsigned char>(i * 7 + 1);
  const auto word = [](unsigned char* at) { return reinterpret_cast<Word*>(at); };
  expect_runs("copy", copy<Word>, 1, 32, 0, word(from), word(to));
  bool same = true;
  for (unsigned i = 0; i < sizeof(Word) * 32; ++i) same = same && to[i] == from[i];
  expect(same, "words of %zu bytes are copied", sizeof(Word));
  expect_error(misaligned, copy<Word>, 1, 32, 0, word(from + sizeof(Word) / 2), word(to));
  expect_error(misaligned, copy<Word>, 1, 32, 0, word(from), word(to + sizeof(Word) / 2));
}

}  // namespace

int main() {
  under_all_schedules([] {
    test_word<uint4>("misaligned access to 16 bytes");
    test_word<uint32_t>("misaligned access to 4 bytes");
    test_word<uint16_t>("misaligned access to 2 bytes");
  });
  return failures == 0 ? 0 : 1;
}
