// A small random sequence (splitmix64), the same on every machine.
#ifndef KVP_SIMT_RANDOM_H
#define KVP_SIMT_RANDOM_H

#include <cstdint>

namespace kvp::simt {

class Random {
 public:
  // Different streams of a seed have nothing in common.
  explicit Random(uint64_t seed = 0, uint64_t stream = 0) : state_(seed) {
    state_ = next() ^ stream;
  }

  // Below n > 0.
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }

 private:
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t x = state_;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
  }

  uint64_t state_;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_RANDOM_H
