// The operations of the C ABI: read the caller's structs, validate, dispatch to a backend.
#include <algorithm>
#include <cstring>

#include "host/backends.h"
#include "host/error.h"
#include "host/validate.h"
#include "kvp/kvp.h"

namespace kvp {
namespace {

// A struct as this library knows it, read from a caller whose header may be older or newer. A
// newer caller may not use what this library does not know.
template <typename T>
T read_struct(const char* name, const T* from, size_t first_version_bytes) {
  if (from == nullptr) invalid("%s is NULL", name);
  const size_t bytes = from->struct_size;
  if (bytes < first_version_bytes) {
    invalid("%s.struct_size is %zu, expected at least %zu", name, bytes, first_version_bytes);
  }
  const auto* begin = reinterpret_cast<const unsigned char*>(from);
  if (bytes > sizeof(T) &&
      std::any_of(begin + sizeof(T), begin + bytes, [](unsigned char byte) { return byte != 0; })) {
    unsupported("%s uses fields that this version of libkvp does not know", name);
  }
  T copy{};
  std::memcpy(static_cast<void*>(&copy), from, std::min(bytes, sizeof(T)));
  return copy;
}

// The caller's arguments with geometry checked: all that a size query needs.
class Arguments {
 public:
  Arguments(kvp_op op, const kvp_args* args) : args_(read_struct("args", args, sizeof(kvp_args))) {
    if (args_.policy != nullptr) {
      policy_ = read_struct("policy", args_.policy, sizeof(kvp_policy));
      args_.policy = &policy_;
    }
    // Strides that a mode ignores may hold anything.
    if (args_.mode != KVP_PER_HEAD) args_.budget.stride_head = 0;
    if (args_.mode == KVP_MODEL) args_.budget.stride_layer = 0;
    validate_geometry(op, args_);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  kvp_args& operator*() { return args_; }

 private:
  kvp_args args_;
  kvp_policy policy_{};
};

void check_workspace(kvp_op op, const kvp_args& args) {
  const size_t bytes = backend_for(args.device).workspace_bytes(op, args);
  if (bytes == 0) return;
  if (args.workspace == nullptr) invalid("workspace is NULL, expected %zu bytes", bytes);
  if (args.workspace_bytes < bytes) {
    invalid("workspace_bytes is %zu, expected >= %zu", args.workspace_bytes, bytes);
  }
}

kvp_status run(kvp_op op, const kvp_args* user_args) {
  return guarded([&] {
    Arguments args(op, user_args);
    check_workspace(op, *args);
    validate_counts(op, *args);
    validate_memory(op, *args);
    backend_for((*args).device).run(op, *args);
  });
}

}  // namespace
}  // namespace kvp

extern "C" {

kvp_status kvp_workspace_bytes(kvp_op op, const kvp_args* args, size_t* bytes) {
  return kvp::guarded([&] {
    if (bytes == nullptr) kvp::invalid("bytes is NULL");
    kvp::Arguments checked(op, args);
    *bytes = kvp::backend_for((*checked).device).workspace_bytes(op, *checked);
  });
}

kvp_status kvp_validate(kvp_op op, const kvp_args* args) {
  return kvp::guarded([&] {
    kvp::Arguments checked(op, args);
    kvp::validate_counts(op, *checked);
    kvp::validate_memory(op, *checked);
  });
}

kvp_status kvp_score(const kvp_args* args) { return kvp::run(KVP_OP_SCORE, args); }
kvp_status kvp_select(const kvp_args* args) { return kvp::run(KVP_OP_SELECT, args); }
kvp_status kvp_compact(const kvp_args* args) { return kvp::run(KVP_OP_COMPACT, args); }
kvp_status kvp_evict(const kvp_args* args) { return kvp::run(KVP_OP_EVICT, args); }

}  // extern "C"
