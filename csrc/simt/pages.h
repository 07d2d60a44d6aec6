// Memory straight from the system.
#ifndef KVP_SIMT_PAGES_H
#define KVP_SIMT_PAGES_H

#include <cstddef>

namespace kvp::simt {

class Pages {
 public:
  Pages() = default;
  // Readable and writable, zero, on a page boundary. Throws std::bad_alloc.
  explicit Pages(size_t bytes);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Makes whole pages inaccessible.
  void protect(size_t offset, size_t bytes);

  // Puts new pages in the place of old ones. To TSan nobody has touched them, and sanitizers have
  // no red zones there.
  void renew(size_t offset, size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

size_t page_bytes();

}  // namespace kvp::simt

#endif  // KVP_SIMT_PAGES_H
