#include "host/strided.h"

#include <algorithm>
#include <cstdio>

#include "host/error.h"

namespace kvp {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

// One term of the sum of (i - j) * stride in which two indices i, j of a dimension can differ.
struct Difference {
  int64_t stride;
  int64_t low;
  int64_t high;
};

// Whether the terms from `term` on can sum to `offset`. Strides descend and each exceeds what the
// smaller ones span, so only the multiples next to offset / stride can leave a reachable rest.
bool can_sum_to(const Difference* term, const Difference* end, int64_t offset) {
  if (term == end) return offset == 0;
  int64_t rest_low = 0;
  int64_t rest_high = 0;
  for (const Difference* rest = term + 1; rest != end; ++rest) {
    rest_low += rest->low * rest->stride;
    rest_high += rest->high * rest->stride;
  }
  const int64_t first = std::max(term->low, -floor_div(rest_high - offset, term->stride));
  const int64_t last = std::min(term->high, floor_div(offset - rest_low, term->stride));
  constexpr int64_t kMaxCandidates = 4;
  if (last - first >= kMaxCandidates) return true;  // not nested after all: assume the worst
  for (int64_t multiple = first; multiple <= last; ++multiple) {
    if (can_sum_to(term + 1, end, offset - multiple * term->stride)) return true;
  }
  return false;
}

void describe(const NamedMemory& memory, char* text, size_t bytes) {
  if (memory.layer < 0) {
    std::snprintf(text, bytes, "%s", memory.name);
  } else {
    std::snprintf(text, bytes, "%s[layer %lld]", memory.name, static_cast<long long>(memory.layer));
  }
}

}  // namespace

bool Strided::empty() const {
  return run_bytes_ == 0 ||
         std::any_of(dims_.begin(), dims_.end(), [](const Dim& dim) { return dim.count == 0; });
}

uintptr_t Strided::end() const {
  if (empty()) return begin_;
  int64_t bytes = run_bytes_;
  for (const Dim& dim : dims_) bytes += (dim.count - 1) * dim.stride_bytes;
  return begin_ + static_cast<uintptr_t>(bytes);
}

bool Strided::overlaps_itself() const {
  Dims dims = dims_;
  std::sort(dims.begin(), dims.end(),
            [](const Dim& a, const Dim& b) { return a.stride_bytes < b.stride_bytes; });
  int64_t spanned = run_bytes_;
  for (const Dim& dim : dims) {
    if (dim.count <= 1) continue;
    if (dim.stride_bytes < spanned) return true;
    spanned += (dim.count - 1) * dim.stride_bytes;
  }
  return false;
}

bool Strided::overlaps(const Strided& other) const {
  if (empty() || other.empty() || begin_ >= other.end() || other.begin_ >= end()) return false;
  std::array<Difference, 3> dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    const Dim& a = dims_[d];
    const Dim& b = other.dims_[d];
    if (a.count > 1 && b.count > 1 && a.stride_bytes != b.stride_bytes) return true;
    dims[d] = {a.count > 1 ? a.stride_bytes : b.stride_bytes, 1 - b.count, a.count - 1};
  }
  std::sort(dims.begin(), dims.end(),
            [](const Difference& a, const Difference& b) { return a.stride > b.stride; });
  std::array<Difference, 4> terms;
  size_t n_terms = 0;
  for (const Difference& dim : dims) {
    if (dim.stride > 0 && dim.low < dim.high) terms[n_terms++] = dim;
  }
  terms[n_terms++] = {1, 1 - other.run_bytes_, run_bytes_ - 1};
  return can_sum_to(terms.data(), terms.data() + n_terms,
                    static_cast<int64_t>(other.begin_ - begin_));
}

void refuse_overlaps(std::vector<NamedMemory>& memory) {
  std::sort(memory.begin(), memory.end(), [](const NamedMemory& a, const NamedMemory& b) {
    return a.memory.begin() < b.memory.begin();
  });
  for (auto a = memory.begin(); a != memory.end(); ++a) {
    for (auto b = a + 1; b != memory.end() && b->memory.begin() < a->memory.end(); ++b) {
      if (!(a->written || b->written) || !a->memory.overlaps(b->memory)) continue;
      char first[64];
      char second[64];
      describe(*a, first, sizeof(first));
      describe(*b, second, sizeof(second));
      invalid("%s overlaps %s in memory, expected memory of its own for whatever is written",
              second, first);
    }
  }
}

}  // namespace kvp
