#include "simt/report.h"

#include <cstdio>
#include <vector>

#include "simt/multiprocessor.h"

namespace kvp::simt {
namespace {

// Enough to see who waits for whom.
constexpr int kMaxRanges = 8;

std::string describe(const Multiprocessor& processor, const Thread& thread) {
  if (&thread == current && thread.state == Thread::State::kAwake) return "here";
  if (processor.can_run(thread)) return "can run";
  const Warp& warp = *thread.warp;
  char text[160] = "";
  switch (thread.state) {
    case Thread::State::kReturned:
      return "returned";
    case Thread::State::kAtBarrier:
      std::snprintf(text, sizeof(text), "wait at %s (%s)", name_of(processor.barrier().call),
                    place(processor.barrier().site).text);
      return text;
    case Thread::State::kInWarpCall:
      std::snprintf(text, sizeof(text), "wait in %s (%s), mask 0x%08x",
                    name_of(warp.call[thread.lane]), place(warp.site[thread.lane]).text,
                    warp.mask[thread.lane]);
      return text;
    case Thread::State::kAwake:
      break;
  }
  return text;
}

// Threads that do the same.
struct Group {
  std::string what;
  std::string ranges;
  int count = 0;  // of ranges

  void add(int first, int last) {
    if (++count > kMaxRanges + 1) return;
    if (count > 1) ranges += ", ";
    if (count > kMaxRanges) {
      ranges += "...";
      return;
    }
    ranges += std::to_string(first);
    if (last > first) ranges.append("-").append(std::to_string(last));
  }
};

Group& group_of(std::vector<Group>& groups, const std::string& what) {
  for (Group& group : groups) {
    if (group.what == what) return group;
  }
  groups.push_back({what, "", 0});
  return groups.back();
}

}  // namespace

const char* name_of(BlockCall call) {
  switch (call) {
    case BlockCall::kSync:
      return "__syncthreads";
    case BlockCall::kCount:
      return "__syncthreads_count";
    case BlockCall::kOr:
      return "__syncthreads_or";
    case BlockCall::kAnd:
      return "__syncthreads_and";
  }
  return "?";
}

const char* name_of(WarpCall call) {
  switch (call) {
    case WarpCall::kSync:
      return "__syncwarp";
    case WarpCall::kShuffle:
      return "__shfl_sync";
    case WarpCall::kShuffleXor:
      return "__shfl_xor_sync";
    case WarpCall::kShuffleUp:
      return "__shfl_up_sync";
    case WarpCall::kShuffleDown:
      return "__shfl_down_sync";
    case WarpCall::kBallot:
      return "__ballot_sync";
    case WarpCall::kAny:
      return "__any_sync";
    case WarpCall::kAll:
      return "__all_sync";
    case WarpCall::kMatchAny:
      return "__match_any_sync";
    case WarpCall::kReduceAdd:
      return "__reduce_add_sync";
    case WarpCall::kReduceMin:
      return "__reduce_min_sync";
    case WarpCall::kReduceMax:
      return "__reduce_max_sync";
    case WarpCall::kMma:
      return "mma";
  }
  return "?";
}

Place place(Site site) {
  const char* const slash = std::strrchr(site.file_name(), '/');
  Place place;
  std::snprintf(place.text, sizeof(place.text), "%s:%u",
                slash == nullptr ? site.file_name() : slash + 1, site.line());
  return place;
}

std::string describe_threads(const Multiprocessor& processor) {
  std::vector<Group> groups;
  for (int first = 0, end; first < processor.size(); first = end) {
    const std::string what = describe(processor, processor.thread(first));
    end = first + 1;
    while (end < processor.size() && describe(processor, processor.thread(end)) == what) ++end;
    group_of(groups, what).add(first, end - 1);
  }
  std::string lines;
  for (const Group& group : groups) lines += "\n  threads " + group.ranges + ": " + group.what;
  return lines;
}

}  // namespace kvp::simt
