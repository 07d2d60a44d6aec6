"""The CUDA kernels run on the host, thread by thread: slow, and right where a GPU would be."""

from __future__ import annotations

from .. import _C
from .native import NativeBackend


def is_built() -> bool:
    """Whether libkvp was built with KVP_SIMT=ON."""
    return "simt" in _C.devices()


class SimtBackend(NativeBackend):
    """Caches in host memory, for tests of the CUDA kernels."""

    def __init__(self) -> None:
        super().__init__(_C.SIMT)
