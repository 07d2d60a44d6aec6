#include "cpu/select.h"

#include <algorithm>
#include <cstring>

namespace kvp::cpu {
namespace {

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7F800000u;
constexpr uint32_t kNanKey = 1;

// Scores and keys may be the same memory, so bits are read without a type.
uint32_t bits_at(const float* scores, int64_t index) {
  uint32_t bits;
  std::memcpy(&bits, scores + index, sizeof(bits));
  return bits;
}

uint32_t score_key(uint32_t bits) {
  const uint32_t magnitude = bits & ~kSignBit;
  // Negative numbers descend with their magnitude; -0 meets +0 at the middle.
  const uint32_t key = bits & kSignBit ? kSignBit - magnitude : kSignBit + magnitude;
  return magnitude > kInfinityBits ? kNanKey : key;
}

template <typename Load, typename IsValid>
void write_keys_of(int64_t end, Load load, IsValid is_valid, uint32_t* keys) {
  for (int64_t slot = 0; slot < end; ++slot) {
    const uint32_t key = score_key(load(slot));
    keys[slot] = is_valid(slot) ? key : kPaddingKey;
  }
}

}  // namespace

void write_keys(const float* scores, int64_t stride, const Positions& pos, const Validity& valid,
                uint32_t* keys) {
  const auto all = [](int64_t) { return true; };
  const auto positioned = [&](int64_t slot) { return pos[slot] >= 0; };
  const auto unit = [=](int64_t slot) { return bits_at(scores, slot); };
  const auto strided = [=](int64_t slot) { return bits_at(scores, slot * stride); };
  if (stride == 1 && valid.is_prefix()) {
    write_keys_of(valid.end, unit, all, keys);
  } else if (valid.is_prefix()) {
    write_keys_of(valid.end, strided, all, keys);
  } else {
    write_keys_of(valid.end, strided, positioned, keys);
  }
}

Pins fit_pins(int64_t sinks, int64_t recent, int64_t budget) {
  const int64_t fitting_sinks = std::min(sinks, budget);
  return {fitting_sinks, std::min(recent, budget - fitting_sinks)};
}

void pin(const Pins& pins, const Validity& valid, uint32_t* keys) {
  int64_t left = std::min(pins.sinks, valid.count);
  for (int64_t slot = 0; left > 0; ++slot) {
    if (keys[slot] == kPaddingKey) continue;
    keys[slot] = kPinnedKey;
    --left;
  }
  left = std::min(pins.recent, valid.count);
  for (int64_t slot = valid.end - 1; left > 0; --slot) {
    if (keys[slot] == kPaddingKey) continue;
    keys[slot] = kPinnedKey;
    --left;
  }
}

void pin_best(const Validity& valid, uint32_t* keys) {
  if (valid.count > 0) *std::max_element(keys, keys + valid.end) = kPinnedKey;
}

void CutSearch::count(const uint32_t* keys, int64_t n, uint32_t* bins) const {
  const int low = shift();
  const uint32_t mask = (1u << width()) - 1;
  if (digit_ == 0) {
    for (int64_t i = 0; i < n; ++i) ++bins[keys[i] >> low];
    return;
  }
  const int high = low + width();
  for (int64_t i = 0; i < n; ++i) {
    if (keys[i] >> high == prefix_) ++bins[keys[i] >> low & mask];
  }
}

Cut find_cut(const uint32_t* keys, int64_t n, int64_t wanted, uint32_t* bins) {
  CutSearch search(wanted);
  while (!search.done()) {
    std::fill_n(bins, CutSearch::kBins, 0u);
    search.count(keys, n, bins);
    search.narrow([&](int64_t bin) { return int64_t{bins[bin]}; });
  }
  return search.cut();
}

int64_t count_ties(const uint32_t* keys, int64_t n, uint32_t threshold) {
  int64_t ties = 0;
  for (int64_t i = 0; i < n; ++i) ties += keys[i] == threshold;
  return ties;
}

int64_t list_kept(const uint32_t* keys, int64_t n, Cut cut, int32_t* kept) {
  int64_t n_kept = 0;
  int64_t slot = 0;
  // Each slot is written and only counted if it is kept: no branch to mispredict.
  for (int64_t ties = cut.ties; slot < n && ties > 0; ++slot) {
    const uint32_t key = keys[slot];
    kept[n_kept] = static_cast<int32_t>(slot);
    n_kept += key >= cut.threshold;
    ties -= key == cut.threshold;
  }
  for (; slot < n; ++slot) {
    const uint32_t key = keys[slot];
    kept[n_kept] = static_cast<int32_t>(slot);
    n_kept += key > cut.threshold;
  }
  return n_kept;
}

void list_valid(const Positions& pos, const Validity& valid, int32_t* kept) {
  int64_t n_kept = 0;
  for (int64_t slot = 0; slot < valid.end; ++slot) {
    kept[n_kept] = static_cast<int32_t>(slot);
    n_kept += valid.is_prefix() || pos[slot] >= 0;
  }
}

void fill_holes(const int32_t* ascending, int64_t n_kept, int32_t* kept) {
  const int32_t* low = ascending;
  const int32_t* high = std::lower_bound(ascending, ascending + n_kept, n_kept);
  const int32_t* const end_of_low = high;
  for (int64_t slot = 0; slot < n_kept; ++slot) {
    const bool stays = low != end_of_low && *low == slot;
    kept[slot] = stays ? *low++ : *high++;
  }
}

void sort_by_key(const uint32_t* keys, int64_t n, uint32_t* order, uint32_t* scratch,
                 uint32_t* bins) {
  constexpr int kWidth = 11;
  static_assert(CutSearch::kBins == 1 << kWidth);
  constexpr uint32_t kMask = CutSearch::kBins - 1;
  uint32_t* const targets[] = {order, scratch, order};
  const uint32_t* source = nullptr;  // the identity
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass * kWidth;
    // Complemented keys ascend where keys descend.
    const auto bin_of = [&](uint32_t slot) { return ~keys[slot] >> shift & kMask; };
    std::fill_n(bins, CutSearch::kBins, 0u);
    for (int64_t i = 0; i < n; ++i) ++bins[bin_of(static_cast<uint32_t>(i))];
    uint32_t begin = 0;
    for (int bin = 0; bin < CutSearch::kBins; ++bin) {
      const uint32_t count = bins[bin];
      bins[bin] = begin;
      begin += count;
    }
    uint32_t* const target = targets[pass];
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t slot = source == nullptr ? static_cast<uint32_t>(i) : source[i];
      target[bins[bin_of(slot)]++] = slot;
    }
    source = target;
  }
}

}  // namespace kvp::cpu
