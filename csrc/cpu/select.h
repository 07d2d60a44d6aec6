// Exact selection of the entries to keep, for any budget.
//
// Scores become 32-bit keys that order as the documented rank does; a most-significant-digit
// radix search over keys in slot order finds a cut (threshold key, quota of ties). Reading the
// keys once more in slot order then yields ascending survivors and gives ties to the lowest
// slots, so nothing is ever sorted. Keys are read up to 4 times, 11 bits at a time.
#ifndef KVP_CPU_SELECT_H
#define KVP_CPU_SELECT_H

#include <cstdint>

#include "host/rows.h"

namespace kvp::cpu {

// A key's order: padding < NaN < -inf < ... < -0 == +0 < ... < +inf < pinned.
constexpr uint32_t kPaddingKey = 0;
constexpr uint32_t kPinnedKey = UINT32_MAX;

// Keys of slots [0, valid.end). `keys` may be the memory of contiguous scores.
void write_keys(const float* scores, int64_t stride, const Positions& pos, const Validity& valid,
                uint32_t* keys);

// Entries always kept: the first `sinks` and the last `recent` valid ones.
struct Pins {
  int64_t sinks;
  int64_t recent;
};

// What of the pins fits a budget: the recent window shrinks first.
Pins fit_pins(int64_t sinks, int64_t recent, int64_t budget);

void pin(const Pins& pins, const Validity& valid, uint32_t* keys);

// Pins the best entry.
void pin_best(const Validity& valid, uint32_t* keys);

// Kept are the keys above the threshold and the first `ties` that equal it.
struct Cut {
  uint32_t threshold;
  int64_t ties;
};

// Search for the cut that keeps `wanted` >= 1 of a set of keys, which may lie in many arrays:
// until it is done, count every array's keys and narrow by the sums.
class CutSearch {
 public:
  static constexpr int kBins = 1 << 11;

  explicit CutSearch(int64_t wanted) : wanted_(wanted) {}

  bool done() const { return digit_ == kDigits; }
  void count(const uint32_t* keys, int64_t n, uint32_t* bins) const;  // adds to bins[kBins]

  // `total(bin)` is the number of keys counted in a bin.
  template <typename Total>
  void narrow(Total&& total) {
    int64_t bin = kBins;
    int64_t in_bin = 0;
    do {
      wanted_ -= in_bin;
      in_bin = total(--bin);
    } while (in_bin < wanted_);
    prefix_ = prefix_ << width() | static_cast<uint32_t>(bin);
    ++digit_;
  }

  Cut cut() const { return {prefix_, wanted_}; }

 private:
  static constexpr int kDigits = 3;
  int width() const { return digit_ == 2 ? 10 : 11; }
  int shift() const { return digit_ == 0 ? 21 : digit_ == 1 ? 10 : 0; }

  int digit_ = 0;
  uint32_t prefix_ = 0;  // the threshold's digits so far
  int64_t wanted_;       // of the keys that share them
};

// The cut of one array; `bins` is scratch of CutSearch::kBins.
Cut find_cut(const uint32_t* keys, int64_t n, int64_t wanted, uint32_t* bins);

// Number of keys that equal the threshold.
int64_t count_ties(const uint32_t* keys, int64_t n, uint32_t threshold);

// Writes the slots of the kept keys, ascending, and returns their number. May write up to n
// slots; `kept` may be the memory of the keys.
int64_t list_kept(const uint32_t* keys, int64_t n, Cut cut, int32_t* kept);

// The valid slots, ascending.
void list_valid(const Positions& pos, const Validity& valid, int32_t* kept);

// Rearranges ascending survivors so that those below n_kept stay where they are and the others
// fill the holes between them, both ascending.
void fill_holes(const int32_t* ascending, int64_t n_kept, int32_t* kept);

// Slots [0, n) by descending key, equal keys by ascending slot. `order` and `scratch` hold n
// slots each, `bins` CutSearch::kBins.
void sort_by_key(const uint32_t* keys, int64_t n, uint32_t* order, uint32_t* scratch,
                 uint32_t* bins);

}  // namespace kvp::cpu

#endif  // KVP_CPU_SELECT_H
