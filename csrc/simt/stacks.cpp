#include "simt/stacks.h"

#include <utility>

namespace kvp::simt {

void Stacks::reserve(size_t count) {
  while (pages_.size() < count) {
    Pages pages(page_bytes() + kStackBytes);
    pages.protect(0, page_bytes());
    pages_.push_back(std::move(pages));
  }
}

void Stacks::renew(size_t count) {
  for (size_t i = 0; i < count; ++i) pages_[i].renew(page_bytes(), kStackBytes);
}

}  // namespace kvp::simt
