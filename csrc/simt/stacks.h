// Stacks for fibers, below each a guard page: a kernel that needs more than kStackBytes faults
// instead of writing over its neighbour's stack.
#ifndef KVP_SIMT_STACKS_H
#define KVP_SIMT_STACKS_H

#include <cstddef>
#include <vector>

#include "simt/pages.h"

namespace kvp::simt {

// Pages that no kernel touches cost nothing.
constexpr size_t kStackBytes = size_t{256} << 10;

struct Stack {
  std::byte* bottom;
  std::byte* top() const { return bottom + kStackBytes; }
};

// Keeps what it once mapped.
class Stacks {
 public:
  // Maps what is missing. Throws std::bad_alloc.
  void reserve(size_t count);

  Stack operator[](size_t i) const { return {pages_[i].data() + page_bytes()}; }

  // New pages for the first `count` stacks.
  void renew(size_t count);

 private:
  std::vector<Pages> pages_;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_STACKS_H
