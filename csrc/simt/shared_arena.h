// The dynamic shared memory of a block. Pieces begin as NaN and lie apart: the red zones between
// them hold a pattern that is looked over at barriers and at the block's end, and ASan refuses
// them to kernels.
#ifndef KVP_SIMT_SHARED_ARENA_H
#define KVP_SIMT_SHARED_ARENA_H

#include <cstddef>
#include <cstdint>

#include "simt/device.h"
#include "simt/pages.h"

namespace kvp::simt {

// Of shared memory and of what cp.async copies.
constexpr size_t kSharedAlignment = 16;

class SharedArena {
 public:
  static constexpr int kMaxPieces = 64;

  struct Piece {
    std::byte* begin;
    int64_t bytes;
    Site site;  // where it was taken
  };

  // A red zone that was written to.
  struct Overrun {
    const Piece* piece;      // the one before it
    int64_t bytes_past_end;  // of the first byte that differs
  };

  // Room for launches of so many bytes. Throws std::bad_alloc.
  void reserve(size_t launch_bytes);
  void begin_block(size_t launch_bytes);

  // The piece that follows those added so far; null if the launch has too few bytes for it.
  const Piece* add(int64_t bytes, Site site);

  int pieces() const { return count_; }
  const Piece& piece(int i) const { return pieces_[i]; }
  int64_t free_bytes() const { return free_bytes_; }

  // Whether one piece holds all of these bytes.
  bool holds(const void* address, int64_t bytes) const;

  // The first red zone that was written to; its piece is null if there is none.
  Overrun find_overrun() const;

  // Memory in units of kSharedAlignment.
  size_t units() const { return pages_.bytes() / kSharedAlignment; }
  size_t unit_of(const std::byte* address) const {
    return static_cast<size_t>(address - pages_.data()) / kSharedAlignment;
  }
  std::byte* unit(size_t i) const { return pages_.data() + i * kSharedAlignment; }

 private:
  Pages pages_;
  std::byte* next_ = nullptr;  // where the next piece begins
  int64_t free_bytes_ = 0;     // of the launch
  int count_ = 0;
  Piece pieces_[kMaxPieces];
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_SHARED_ARENA_H
