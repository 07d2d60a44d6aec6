#include "simt/shared_arena.h"

#include <cstring>

#include "simt/multiprocessor.h"
#include "simt/sanitizers.h"

namespace kvp::simt {
namespace {

constexpr int64_t kRedZoneBytes = 64;
constexpr int kUninitialised = 0xFF;

// Not a number in any format of 2 or 4 bytes, and not what pieces begin as.
std::byte pattern(const std::byte* at) {
  return std::byte{reinterpret_cast<uintptr_t>(at) % 2 == 0 ? uint8_t{0xD5} : uint8_t{0x7F}};
}

int64_t round_up(int64_t bytes) {
  constexpr auto kUnit = static_cast<int64_t>(kSharedAlignment);
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

size_t arena_bytes(size_t launch_bytes) {
  constexpr size_t kRedZones = (SharedArena::kMaxPieces + 1) * kRedZoneBytes;
  const size_t pages = (launch_bytes + kRedZones) / page_bytes() + 1;
  return pages * page_bytes();
}

// Not memset: TSan would take that for an access of the thread that takes the piece.
void fill_red_zone(std::byte* begin, std::byte* end) {
  for (volatile std::byte* at = begin; at < end; ++at) {
    *at = pattern(const_cast<const std::byte*>(at));
  }
}

// The first byte that differs from the pattern, `end` if none does. Words, since this is done at
// every barrier.
const std::byte* find_damage(const std::byte* begin, const std::byte* end) {
  constexpr uint64_t kPatternWord = 0x7FD57FD57FD57FD5u;
  constexpr auto kWord = static_cast<int64_t>(sizeof(kPatternWord));
  const std::byte* at = begin;
  while (at < end) {
    if (reinterpret_cast<uintptr_t>(at) % kWord == 0 && end - at >= kWord) {
      uint64_t word;
      std::memcpy(&word, at, sizeof(word));
      if (word == kPatternWord) {
        at += kWord;
        continue;
      }
    }
    if (*at != pattern(at)) return at;
    ++at;
  }
  return end;
}

}  // namespace

void SharedArena::reserve(size_t launch_bytes) {
  if (arena_bytes(launch_bytes) > pages_.bytes()) pages_ = Pages(arena_bytes(launch_bytes));
}

void SharedArena::begin_block(size_t launch_bytes) {
  const size_t bytes = arena_bytes(launch_bytes);
  if (has_tsan()) pages_.renew(0, bytes);  // to TSan, blocks on one OS thread are unordered
  unpoison(pages_.data(), bytes);
  std::memset(pages_.data(), kUninitialised, bytes);
  next_ = pages_.data() + kRedZoneBytes;
  poison(pages_.data(), bytes);
  free_bytes_ = static_cast<int64_t>(launch_bytes);
  count_ = 0;
}

const SharedArena::Piece* SharedArena::add(int64_t bytes, Site site) {
  const int64_t rounded = round_up(bytes);
  if (rounded > free_bytes_ || count_ == kMaxPieces) return nullptr;
  std::byte* const end = next_ + rounded + kRedZoneBytes;
  fill_red_zone(next_ + bytes, end);
  unpoison(next_, static_cast<size_t>(bytes));
  Piece& piece = pieces_[count_++];
  piece = {next_, bytes, site};
  next_ = end;
  free_bytes_ -= rounded;
  return &piece;
}

bool SharedArena::holds(const void* address, int64_t bytes) const {
  for (int i = 0; i < count_; ++i) {
    const int64_t offset = static_cast<const std::byte*>(address) - pieces_[i].begin;
    if (offset >= 0 && offset + bytes <= pieces_[i].bytes) return true;
  }
  return false;
}

SharedArena::Overrun SharedArena::find_overrun() const {
  for (int i = 0; i < count_; ++i) {
    const Piece& piece = pieces_[i];
    const std::byte* const end = piece.begin + round_up(piece.bytes) + kRedZoneBytes;
    const std::byte* const damage = find_damage(piece.begin + piece.bytes, end);
    if (damage != end) return {&piece, damage - piece.begin - piece.bytes};
  }
  return {nullptr, 0};
}

void* take_shared(SharedCursor& cursor, int64_t bytes, Site site) {
  Multiprocessor& processor = *this_thread().multiprocessor;
  SharedArena& arena = processor.arena();
  if (cursor.pieces == arena.pieces() && (bytes < 0 || arena.add(bytes, site) == nullptr)) {
    processor.fail(
        "shared memory exhausted: a piece of %lld bytes, rounded up to 16 (%s), as number %d, "
        "where "
        "%lld bytes of the launch are left",
        static_cast<long long>(bytes), place(site).text, cursor.pieces + 1,
        static_cast<long long>(arena.free_bytes()));
  }
  const SharedArena::Piece& piece = arena.piece(cursor.pieces++);
  if (piece.bytes != bytes) {
    processor.fail(
        "different pieces of shared memory in one place: %lld bytes (%s), and %lld by "
        "another thread (%s)",
        static_cast<long long>(bytes), place(site).text, static_cast<long long>(piece.bytes),
        place(piece.site).text);
  }
  return piece.begin;
}

}  // namespace kvp::simt
