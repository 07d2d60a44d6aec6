// What the lanes of a warp do together.
#ifndef KVP_SIMT_CUDA_WARP_FUNCTIONS_H
#define KVP_SIMT_CUDA_WARP_FUNCTIONS_H

#include <cstring>
#include <type_traits>

#include "simt/device.h"

namespace kvp::simt {

// Values of 4 or 8 bytes travel as 64 bits.
template <class T>
uint64_t to_bits(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  static_assert(std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// The lanes of a shuffle are divided into segments of `width`, a power of two.
struct Segment {
  explicit Segment(int width)
      : lane(current->lane), first(lane & ~(width - 1)), last(first + width - 1) {}
  int lane;
  int first;
  int last;
};

template <class T>
T shuffle(WarpCall call, uint32_t mask, T value, int source, Site site) {
  return from_bits<T>(join_warp(call, mask, to_bits(value), source, site));
}

}  // namespace kvp::simt

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu,
                       kvp::simt::Site site = kvp::simt::Site::current()) {
  kvp::simt::join_warp(kvp::simt::WarpCall::kSync, mask, 0, 0, site);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              kvp::simt::Site site = kvp::simt::Site::current()) {
  const kvp::simt::Segment segment(width);
  return kvp::simt::shuffle(kvp::simt::WarpCall::kShuffle, mask, value,
                            segment.first + (source & (width - 1)), site);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  kvp::simt::Site site = kvp::simt::Site::current()) {
  const kvp::simt::Segment segment(width);
  const int source = segment.lane ^ lane_mask;
  return kvp::simt::shuffle(kvp::simt::WarpCall::kShuffleXor, mask, value,
                            source <= segment.last ? source : segment.lane, site);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 kvp::simt::Site site = kvp::simt::Site::current()) {
  const kvp::simt::Segment segment(width);
  const int source = segment.lane - static_cast<int>(delta);
  return kvp::simt::shuffle(kvp::simt::WarpCall::kShuffleUp, mask, value,
                            source >= segment.first ? source : segment.lane, site);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   kvp::simt::Site site = kvp::simt::Site::current()) {
  const kvp::simt::Segment segment(width);
  const int source = segment.lane + static_cast<int>(delta);
  return kvp::simt::shuffle(kvp::simt::WarpCall::kShuffleDown, mask, value,
                            source <= segment.last ? source : segment.lane, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              kvp::simt::Site site = kvp::simt::Site::current()) {
  return static_cast<unsigned>(
      kvp::simt::join_warp(kvp::simt::WarpCall::kBallot, mask, predicate != 0, 0, site));
}

inline int __any_sync(unsigned mask, int predicate,
                      kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::join_warp(kvp::simt::WarpCall::kAny, mask, predicate != 0, 0, site) != 0;
}

inline int __all_sync(unsigned mask, int predicate,
                      kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::join_warp(kvp::simt::WarpCall::kAll, mask, predicate != 0, 0, site) == mask;
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value,
                          kvp::simt::Site site = kvp::simt::Site::current()) {
  return static_cast<unsigned>(kvp::simt::join_warp(kvp::simt::WarpCall::kMatchAny, mask,
                                                    kvp::simt::to_bits(value), 0, site));
}

namespace kvp::simt {

template <class T>
T reduce(WarpCall call, uint32_t mask, T value, Site site) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
  const auto wide = static_cast<int64_t>(value);
  return static_cast<T>(join_warp(call, mask, static_cast<uint64_t>(wide), 0, site));
}

}  // namespace kvp::simt

template <class T>
T __reduce_add_sync(unsigned mask, T value, kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::reduce(kvp::simt::WarpCall::kReduceAdd, mask, value, site);
}

template <class T>
T __reduce_min_sync(unsigned mask, T value, kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::reduce(kvp::simt::WarpCall::kReduceMin, mask, value, site);
}

template <class T>
T __reduce_max_sync(unsigned mask, T value, kvp::simt::Site site = kvp::simt::Site::current()) {
  return kvp::simt::reduce(kvp::simt::WarpCall::kReduceMax, mask, value, site);
}

#endif  // KVP_SIMT_CUDA_WARP_FUNCTIONS_H
