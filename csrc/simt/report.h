// Names for errors.
#ifndef KVP_SIMT_REPORT_H
#define KVP_SIMT_REPORT_H

#include <cstring>
#include <string>

#include "simt/device.h"

namespace kvp::simt {

class Multiprocessor;

const char* name_of(BlockCall call);
const char* name_of(WarpCall call);

// "file:line", without the file's folder.
struct Place {
  char text[80];
};
Place place(Site site);

inline bool same_place(const Site& a, const Site& b) {
  if (std::memcmp(&a, &b, sizeof(Site)) == 0) return true;
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

// What the threads of the block do, one line for all that do the same.
std::string describe_threads(const Multiprocessor& processor);

}  // namespace kvp::simt

#endif  // KVP_SIMT_REPORT_H
