#include "simt/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "simt/sanitizers.h"

namespace kvp::simt {
namespace {

void* map(void* at, size_t bytes, int flags) {
  void* mapped = mmap(at, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return mapped;
}

}  // namespace

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

Pages::Pages(size_t bytes)
    : data_(static_cast<std::byte*>(map(nullptr, bytes, 0))), bytes_(bytes) {}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Pages::~Pages() {
  if (data_ == nullptr) return;
  unpoison(data_, bytes_);
  munmap(data_, bytes_);
}

void Pages::protect(size_t offset, size_t bytes) {
  if (mprotect(data_ + offset, bytes, PROT_NONE) != 0) throw std::bad_alloc();
}

void Pages::renew(size_t offset, size_t bytes) {
  map(data_ + offset, bytes, MAP_FIXED);
  unpoison(data_ + offset, bytes);
}

}  // namespace kvp::simt
