"""The CUDA backend: one launch for all layers, heads and sequences on the cache's GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _C
from .._call import Call
from ..results import Evicted
from .native import NativeBackend, Results

HOW_TO_BUILD = (
    "this build of kvp-ext has no CUDA backend; it takes nvcc 12.4 or newer to build one:\n"
    "  pip install --no-binary kvp-ext --config-settings=cmake.define.KVP_CUDA=ON kvp-ext\n"
    "Until then backend='reference' works on the GPU, in plain PyTorch."
)


def is_built() -> bool:
    """Whether libkvp has the CUDA kernels."""
    return "cuda" in _C.devices()


def describe() -> str:
    """What `backends()` says of the CUDA backend."""
    if not is_built():
        return HOW_TO_BUILD
    if not torch.cuda.is_available():
        return "built, but torch finds no CUDA device; it takes a driver and a CUDA build of torch"
    return "available: compute capability 8.0 and newer"


class CudaBackend(NativeBackend):
    """Caches in GPU memory. Enqueues on the current stream and never waits for the device."""

    def __init__(self) -> None:
        super().__init__(_C.CUDA)

    def unavailable(self, device: torch.device) -> str | None:
        """See `Backend`."""
        if not is_built():
            return HOW_TO_BUILD
        if device.type != "cuda":
            return f"the cache is on {device}; backend='cpu' is the one for it"
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return (
                f"{device} has compute capability {major}.{minor}, the kernels need 8.0 or newer;\n"
                "backend='reference' works there, in plain PyTorch"
            )
        return None

    def _run(self, call: Call, op: int, results: Results | None) -> None:
        if not call.present() and results is None:
            return
        with torch.cuda.device(call.device):
            super()._run(call, op, results)

    def _stream(self, call: Call) -> int:
        return torch.cuda.current_stream(call.device).cuda_stream

    def _workspace(self, size: int, device: torch.device) -> Tensor:
        """From torch's allocator, which knows the stream and graph captures."""
        return torch.empty(size, dtype=torch.uint8, device=device)

    def _may_have_changed(self, evicted: Evicted) -> bool:
        return True  # to know would be to wait
