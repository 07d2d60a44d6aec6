#!/bin/sh
# Everything that only a GPU can tell, in under 8 minutes, without network: see device_check.py.
#
#   bench/device_check.sh [--dry-run] [--out FILE] [--steps build,parity,...]
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" bench/device_check.py "$@"
