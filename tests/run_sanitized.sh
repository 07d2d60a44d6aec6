#!/bin/sh
# Builds libkvp and the Python module with sanitizers in a folder of their own, the CUDA kernels on
# the host among them, then runs the C++ programs and, with address,undefined, pytest with the given
# arguments (default: what reaches the native code).
#
#   tests/run_sanitized.sh [address,undefined|thread] [pytest arguments]
set -eu

sanitizers=${1:-address,undefined}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- tests/test_native.py tests/test_eviction.py tests/test_cuda_kernels.py \
  -m "not slow" -k "not reference"

cd "$(dirname "$0")/.."
python=${PYTHON:-python}
build=build-sanitize-$(echo "$sanitizers" | tr ',' '-')

# As architecture 86 the kernels have the short ring of weights, which other tests do not run.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
  -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF -DKVP_PYTHON=ON -DKVP_TESTS=ON -DKVP_CUDA=OFF \
  -DKVP_SIMT=ON -DKVP_SIMT_ARCHITECTURE=86 -DKVP_SANITIZE="$sanitizers" -DPython_EXECUTABLE="$(command -v "$python")" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
rm "$build.log"
cmake --build "$build" --parallel 2

export UBSAN_OPTIONS=print_stacktrace=1 OMP_WAIT_POLICY=passive
# Uninstrumented memory of Python is not ours to report; in the C++ programs every leak is.
ctest --test-dir "$build" --output-on-failure
case $sanitizers in *address*) ;; *) exit 0 ;; esac

# The module under test takes the place of the installed one before kvp_ext is imported.
ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$(${CXX:-c++} -print-file-name=libasan.so) $(${CXX:-c++} -print-file-name=libubsan.so)" \
  KVP_MODULE=$(echo "$build"/_C.*.so) "$python" -c '
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("kvp_ext._C", os.environ["KVP_MODULE"])
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
' "$@"
