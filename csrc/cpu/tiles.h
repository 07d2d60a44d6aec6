// Dynamic scheduling of units of work that begin and end serially and have independent tiles in
// between: a unit is opened by one thread, its tiles run on any thread, and the thread that
// finishes its last tile closes it, while the others go on with the next units.
//
// A thread opens a unit only when no tile is left in those in flight. Each of these then has
// another thread at work on it, so `threads` slots for units in flight always suffice, and
// memory per slot is bounded by the threads, not by the units.
#ifndef KVP_CPU_TILES_H
#define KVP_CPU_TILES_H

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>

#include "host/parallel.h"

namespace kvp::cpu {

struct UnitInFlight {
  enum State : int32_t { kFree, kOpening, kOpen };
  State state;
  int64_t unit;
  int64_t next_tile;
  int64_t tiles;
  int64_t unfinished;
};

// Calls, for every unit in [0, n_units), open(unit, slot) -> tiles, then tile(unit, slot, tile,
// worker) for each tile, then close(unit, slot, worker). `slots` needs min(threads, n_units)
// elements; what happens in a tile is visible to close. The callbacks must not throw.
template <typename Open, typename Tile, typename Close>
void run_tiled(int threads, int64_t n_units, std::span<UnitInFlight> slots, Open open, Tile tile,
               Close close) {
  std::mutex mutex;
  std::condition_variable opened;
  int64_t next_unit = 0;
  int64_t opening = 0;
  for (UnitInFlight& slot : slots) slot = {UnitInFlight::kFree, 0, 0, 0, 0};

  const auto find_slot = [&](auto matches) {
    return std::find_if(slots.begin(), slots.end(), matches);
  };
  const auto index_of = [&](auto slot) { return static_cast<int>(slot - slots.begin()); };
  const auto has_tile = [](const UnitInFlight& slot) {
    return slot.state == UnitInFlight::kOpen && slot.next_tile < slot.tiles;
  };
  const auto is_free = [](const UnitInFlight& slot) { return slot.state == UnitInFlight::kFree; };

  parallel_for(threads, threads, [&](int worker, int64_t) {
    std::unique_lock lock(mutex);
    for (;;) {
      if (const auto slot = find_slot(has_tile); slot != slots.end()) {
        const int64_t index = slot->next_tile++;
        lock.unlock();
        tile(slot->unit, index_of(slot), index, worker);
        lock.lock();
        if (--slot->unfinished > 0) continue;
        lock.unlock();
        close(slot->unit, index_of(slot), worker);
        lock.lock();
        slot->state = UnitInFlight::kFree;
      } else if (next_unit < n_units) {
        const auto free = find_slot(is_free);
        free->state = UnitInFlight::kOpening;
        free->unit = next_unit++;
        ++opening;
        lock.unlock();
        const int64_t tiles = open(free->unit, index_of(free));
        if (tiles == 0) close(free->unit, index_of(free), worker);
        lock.lock();
        --opening;
        free->state = tiles == 0 ? UnitInFlight::kFree : UnitInFlight::kOpen;
        free->next_tile = 0;
        free->tiles = free->unfinished = tiles;
        opened.notify_all();
      } else if (opening > 0) {
        opened.wait(lock);  // what is being opened may have tiles to share
      } else {
        return;
      }
    }
  });
}

}  // namespace kvp::cpu

#endif  // KVP_CPU_TILES_H
