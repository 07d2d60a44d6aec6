/* kvp.h is C: it compiles as such, and refusals carry a message. */
#include <kvp/kvp.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  kvp_args args;
  size_t bytes = 0;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args) - 1;
  if (kvp_workspace_bytes(KVP_OP_EVICT, &args, &bytes) != KVP_INVALID_ARGUMENT) return 1;
  if (strstr(kvp_last_error(), "args.struct_size is") == NULL) return 2;
  printf("instruction sets: %s\nrefusal: %s\n", kvp_cpu_isas(), kvp_last_error());
  return 0;
}
