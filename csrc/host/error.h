// Errors inside libkvp are exceptions; at the C ABI they become a status and a message.
#ifndef KVP_HOST_ERROR_H
#define KVP_HOST_ERROR_H

#include <exception>
#include <stdexcept>
#include <string>

#include "kvp/kvp.h"

namespace kvp {

struct Error : std::runtime_error {
  Error(kvp_status status, const std::string& message)
      : std::runtime_error(message), status(status) {}
  kvp_status status;
};

// Throws KVP_INVALID_ARGUMENT; the message names the argument, its value and what was expected.
[[noreturn, gnu::format(printf, 1, 2)]] void invalid(const char* format, ...);

// Throws KVP_UNSUPPORTED.
[[noreturn, gnu::format(printf, 1, 2)]] void unsupported(const char* format, ...);

void set_last_error(const char* message) noexcept;

// Runs a body of the C ABI, which no exception may leave.
template <typename Body>
kvp_status guarded(Body&& body) noexcept {
  try {
    body();
    return KVP_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return KVP_INTERNAL;
  } catch (...) {
    set_last_error("an unknown exception reached the C ABI");
    return KVP_INTERNAL;
  }
}

}  // namespace kvp

#endif  // KVP_HOST_ERROR_H
