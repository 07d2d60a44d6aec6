// The operands of a warp's mma.m16n8k16. Every lane puts its fragments where they belong, and takes
// what became of them from the same places, so the matrices are whole when the last lane comes.
#ifndef KVP_SIMT_MMA_H
#define KVP_SIMT_MMA_H

#include <cstdint>
#include <cstring>

namespace kvp::simt {

struct alignas(32) MmaOperands {
  static constexpr int kRows = 16;    // of a and d
  static constexpr int kColumns = 8;  // of b and d
  static constexpr int kPairs = 8;    // of consecutive k, two numbers to a word, the lower one low

  uint32_t a[kRows][kPairs];
  uint32_t b[kPairs][kColumns];
  float d[kRows][kColumns];

  // Lane 4 g + q holds rows g and g + 8 of a and d and column g of b; of a's and b's pairs q and
  // q + 4, of d's columns 2 q and 2 q + 1.
  void put(unsigned lane, const uint32_t (&lane_a)[4], uint32_t b0, uint32_t b1,
           const float (&lane_d)[4]) {
    const unsigned g = lane / 4, q = lane % 4;
    a[g][q] = lane_a[0];
    a[g + 8][q] = lane_a[1];
    a[g][q + 4] = lane_a[2];
    a[g + 8][q + 4] = lane_a[3];
    b[q][g] = b0;
    b[q + 4][g] = b1;
    std::memcpy(&d[g][2 * q], &lane_d[0], 2 * sizeof(float));
    std::memcpy(&d[g + 8][2 * q], &lane_d[2], 2 * sizeof(float));
  }

  void take(unsigned lane, float (&lane_d)[4]) const {
    const unsigned g = lane / 4, q = lane % 4;
    std::memcpy(&lane_d[0], &d[g][2 * q], 2 * sizeof(float));
    std::memcpy(&lane_d[2], &d[g + 8][2 * q], 2 * sizeof(float));
  }
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_MMA_H
