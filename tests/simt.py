"""The host layer behind backend "simt", as tests steer it."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import kvp_ext
from kvp_ext import _C

needs_simt = pytest.mark.skipif("simt" not in kvp_ext.backends(), reason="built without KVP_SIMT")

# Every order of threads and blocks that the layer knows, and blocks on several threads of the host.
SCHEDULES = {
    "ascending": (0, 0, 1),
    "descending": (1, 0, 1),
    "random 1": (2, 1, 1),
    "random 2": (2, 2, 3),
    "random 3": (2, 3, 1),
}
SEVERAL_THREADS = "random 2"


def _library() -> ctypes.CDLL:
    """The libkvp that the module in use is linked to, wherever it was built."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libkvp.so" in line}
    (path,) = paths
    return ctypes.CDLL(path)


@contextmanager
def schedule(name: str) -> Iterator[None]:
    """Kernels run so inside."""
    configure = _library().kvp_simt_configure
    configure.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_int)
    assert configure(*SCHEDULES[name]) == 0
    try:
        yield
    finally:
        configure(0, 0, 1)


def pretend(architecture: int) -> None:
    """The device has another architecture from now on, such as 75; 0: the one it had first."""
    assert _C.devices()
    _library().kvp_simt_pretend(architecture)
