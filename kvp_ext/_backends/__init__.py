"""The one place that dispatches: a backend by name, or by the cache's device."""

from __future__ import annotations

from typing import Protocol

import torch

from .._call import Call
from ..results import Evicted, Selection
from . import cpu, cuda, simt
from .cpu import CpuBackend
from .cuda import CudaBackend
from .reference import ReferenceBackend


class Backend(Protocol):
    """The operations every backend provides, on checked arguments."""

    def unavailable(self, device: torch.device) -> str | None:
        """Why this backend cannot work on `device`, and the remedy; `None` if it can."""

    def score(self, call: Call) -> None:
        """Writes the score of every valid entry into `call.scores`, NaN elsewhere."""

    def select(self, call: Call) -> Selection:
        """Selects the entries to keep from `call.scores`."""

    def compact(self, call: Call, selection: Selection, return_indices: bool) -> Evicted:
        """Moves the selected entries to the front of their rows."""

    def evict(self, call: Call, return_indices: bool) -> Evicted:
        """Scores, selects and compacts."""


_BACKENDS: dict[str, Backend] = {
    "cpu": CpuBackend(),
    "cuda": CudaBackend(),
    "reference": ReferenceBackend(),
}
if simt.is_built():
    _BACKENDS["simt"] = simt.SimtBackend()


def check_name(name: object) -> None:
    """Refuses what `resolve` would on every device.

    Raises:
        TypeError: `name` is neither `None` nor a str.
        ValueError: it is not a backend.
    """
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"backend is {name!r}, expected None or a name")
    if name not in _BACKENDS:
        known = ", ".join(map(repr, _BACKENDS))
        raise ValueError(f"backend is {name!r}, expected None or one of {known}")


def resolve(name: str | None, device: torch.device) -> Backend:
    """The backend to use for a cache on `device`.

    Raises:
        TypeError, ValueError: of `check_name`.
        RuntimeError: the backend is missing or cannot work on this device; says the remedy.
    """
    check_name(name)
    if name is None:
        name = device.type if device.type in ("cpu", "cuda") else "reference"
    backend = _BACKENDS[name]
    if (reason := backend.unavailable(device)) is not None:
        raise RuntimeError(f"backend {name!r}: {reason}")
    return backend


def backends() -> dict[str, str]:
    """Every backend by name, with "available" or the reason and the remedy."""
    found = {
        "cpu": cpu.describe(),
        "cuda": cuda.describe(),
        "reference": "available: pure PyTorch, any device",
    }
    if simt.is_built():
        found["simt"] = "available: the CUDA kernels on the host, for tests"
    return found


__all__ = ["Backend", "backends", "check_name", "resolve"]
