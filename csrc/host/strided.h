// Strided memory and whether two pieces of it share bytes.
#ifndef KVP_HOST_STRIDED_H
#define KVP_HOST_STRIDED_H

#include <array>
#include <cstdint>
#include <vector>

namespace kvp {

// Runs of `run_bytes` consecutive bytes at begin + sum of index * stride, over three dimensions.
// Strides and the whole extent are >= 0 and fit int64.
class Strided {
 public:
  struct Dim {
    int64_t count;
    int64_t stride_bytes;
  };
  using Dims = std::array<Dim, 3>;

  Strided(const void* data, int64_t run_bytes, const Dims& dims = {{{1, 0}, {1, 0}, {1, 0}}})
      : begin_(reinterpret_cast<uintptr_t>(data)), run_bytes_(run_bytes), dims_(dims) {}

  bool empty() const;
  uintptr_t begin() const { return begin_; }
  uintptr_t end() const;  // one past the last byte

  // Whether two indices may reach the same byte: true unless every stride steps over all that
  // the smaller strides span, which holds for any slice, transposition or reshape of an array.
  bool overlaps_itself() const;

  // Whether the two share a byte. Exact for equal strides, as in interleaved storage such as
  // [batch, slot, K or V, head, channel]; with different strides, whether the ranges intersect.
  bool overlaps(const Strided& other) const;

 private:
  uintptr_t begin_;
  int64_t run_bytes_;
  Dims dims_;
};

// An argument's memory, named for messages; layer -1 for arguments that belong to none.
struct NamedMemory {
  const char* name;
  int64_t layer;
  Strided memory;
  bool written;
};

// Throws if two pieces share bytes and one of them is written. Sorts its argument.
void refuse_overlaps(std::vector<NamedMemory>& memory);

}  // namespace kvp

#endif  // KVP_HOST_STRIDED_H
