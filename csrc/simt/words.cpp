#include <cstdint>

#include "simt/device.h"
#include "simt/multiprocessor.h"
#include "simt/report.h"
#include "simt/thread.h"

namespace kvp::simt {

// A device faults where x86-64 does not.
void check_aligned(const void* address, size_t bytes, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  this_thread().multiprocessor->fail("misaligned access to %zu bytes at %p, at %s", bytes, address,
                                     place(site).text);
}

}  // namespace kvp::simt
