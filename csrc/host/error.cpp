#include "host/error.h"

#include <cstdarg>
#include <cstdio>

namespace kvp {
namespace {

constexpr size_t kMessageBytes = 512;

// A fixed buffer, since reporting an allocation failure must not allocate.
thread_local char last_error[kMessageBytes] = "";

std::string format_message(const char* format, std::va_list values) {
  char message[kMessageBytes];
  std::vsnprintf(message, sizeof(message), format, values);
  return message;
}

}  // namespace

void invalid(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  const std::string message = format_message(format, values);
  va_end(values);
  throw Error(KVP_INVALID_ARGUMENT, message);
}

void unsupported(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  const std::string message = format_message(format, values);
  va_end(values);
  throw Error(KVP_UNSUPPORTED, message);
}

void set_last_error(const char* message) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s", message);
}

}  // namespace kvp

extern "C" const char* kvp_last_error(void) { return kvp::last_error; }
