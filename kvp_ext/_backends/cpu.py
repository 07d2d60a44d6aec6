"""The CPU backend: libkvp's kernels, for the instruction set found at run time."""

from __future__ import annotations

from .. import _C
from .native import NativeBackend


def describe() -> str:
    """What `backends()` says of the CPU backend."""
    return (
        f"available: {_C.cpu_isas()[0]} kernels (this machine can run {', '.join(_C.cpu_isas())})"
    )


class CpuBackend(NativeBackend):
    """Caches in host memory."""

    def __init__(self) -> None:
        super().__init__(_C.CPU)
