#include "simt/async_copies.h"

#include "simt/multiprocessor.h"
#include "simt/sanitizers.h"

namespace kvp::simt {
namespace {

constexpr int64_t kCopyBytes = 16;
static_assert(kCopyBytes == kSharedAlignment);

// Two words, not memcpy, which TSan would see a second time.
using Word = uint64_t __attribute__((may_alias));

void fill_with_nan(std::byte* to) {
  kernel_writes_16(to);
  auto* words = reinterpret_cast<Word*>(to);
  words[0] = words[1] = ~uint64_t{0};
}

void copy(std::byte* to, const std::byte* from) {
  kernel_reads_16(from);
  kernel_writes_16(to);
  const auto* source = reinterpret_cast<const Word*>(from);
  auto* words = reinterpret_cast<Word*>(to);
  words[0] = source[0];
  words[1] = source[1];
}

bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kCopyBytes == 0;
}

}  // namespace

void AsyncCopies::begin_block(const SharedArena& arena) {
  // None is under way unless the block before was abandoned.
  if (copies_.size() < arena.units() || under_way_ != 0) copies_.assign(arena.units(), {});
  under_way_ = 0;
}

bool AsyncCopies::issue(CopyQueue& queue, const SharedArena& arena, std::byte* shared,
                        const std::byte* global) {
  const auto unit = static_cast<uint32_t>(arena.unit_of(shared));
  Copy& copy = copies_[unit];
  if (copy.source != nullptr) return false;
  copy = {global, CopyQueue::kNone, queue.group};
  if (queue.first == CopyQueue::kNone) {
    queue.first = unit;
  } else {
    copies_[queue.last].next = unit;
  }
  queue.last = unit;
  ++under_way_;
  fill_with_nan(shared);
  return true;
}

void AsyncCopies::wait(CopyQueue& queue, const SharedArena& arena, uint32_t pending_groups) {
  while (queue.first != CopyQueue::kNone) {
    Copy& oldest = copies_[queue.first];
    if (oldest.group + pending_groups >= queue.group) return;
    copy(arena.unit(queue.first), oldest.source);
    queue.first = oldest.next;
    oldest.source = nullptr;
    --under_way_;
  }
}

void copy_async(void* shared, const void* global, Site site) {
  Thread& self = this_thread();
  Multiprocessor& processor = *self.multiprocessor;
  if (!is_aligned(shared) || !is_aligned(global)) {
    processor.fail("misaligned cp.async: from %p to %p at %s", global, shared, place(site).text);
  }
  if (!processor.arena().holds(shared, kCopyBytes)) {
    processor.fail("cp.async to memory that is no piece of the block's shared memory: %p at %s",
                   shared, place(site).text);
  }
  if (!processor.copies().issue(self.copies, processor.arena(), static_cast<std::byte*>(shared),
                                static_cast<const std::byte*>(global))) {
    processor.fail("cp.async to a place that another copy is under way to, at %s",
                   place(site).text);
  }
}

void commit_copies() { AsyncCopies::commit(this_thread().copies); }

void wait_copies(uint32_t pending_groups) {
  Thread& self = this_thread();
  Multiprocessor& processor = *self.multiprocessor;
  processor.copies().wait(self.copies, processor.arena(), pending_groups);
}

}  // namespace kvp::simt
