// The cp.async copies under way in a block. A copy is made by the wait for it, no sooner: its
// destination is NaN until then. At most one is under way to each place.
#ifndef KVP_SIMT_ASYNC_COPIES_H
#define KVP_SIMT_ASYNC_COPIES_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simt/shared_arena.h"
#include "simt/thread.h"

namespace kvp::simt {

class AsyncCopies {
 public:
  void begin_block(const SharedArena& arena);

  // False if a copy to this place is under way already.
  bool issue(CopyQueue& queue, const SharedArena& arena, std::byte* shared,
             const std::byte* global);

  static void commit(CopyQueue& queue) { ++queue.group; }

  // Makes the copies of all groups but the last `pending_groups` committed ones.
  void wait(CopyQueue& queue, const SharedArena& arena, uint32_t pending_groups);

 private:
  struct Copy {
    const std::byte* source = nullptr;  // null where none is under way
    uint32_t next = CopyQueue::kNone;   // of the same thread
    uint32_t group = 0;
  };

  std::vector<Copy> copies_;  // by destination, in units of the arena
  int64_t under_way_ = 0;
};

}  // namespace kvp::simt

#endif  // KVP_SIMT_ASYNC_COPIES_H
