#include "cpu/dispatch.h"

#include <atomic>
#include <string>
#include <string_view>

#include "host/error.h"

namespace kvp::cpu {
namespace {

std::atomic<const Isa*> chosen{nullptr};  // nullptr: the best

std::string isa_names() {
  std::string names;
  for (const Isa& isa : available_isas()) {
    if (!names.empty()) names += ',';
    names += isa.name;
  }
  return names;
}

void use_isa(const char* name) {
  if (name == nullptr) {
    chosen = nullptr;
    return;
  }
  for (const Isa& isa : available_isas()) {
    if (std::string_view(isa.name) == name) {
      chosen = &isa;
      return;
    }
  }
  invalid("isa is \"%s\", expected one of %s", name, isa_names().c_str());
}

}  // namespace

const Isa& active_isa() {
  const Isa* isa = chosen;
  return isa != nullptr ? *isa : available_isas().front();
}

}  // namespace kvp::cpu

extern "C" {

const char* kvp_cpu_isas(void) {
  static const std::string names = kvp::cpu::isa_names();
  return names.c_str();
}

kvp_status kvp_cpu_use_isa(const char* isa) {
  return kvp::guarded([&] { kvp::cpu::use_isa(isa); });
}

}  // extern "C"
