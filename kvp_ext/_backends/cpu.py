"""The CPU backend: libkvp's kernels, for the instruction set found at run time."""

from __future__ import annotations

import torch

from .. import _C
from .._call import Call
from ..results import Evicted, Selection
from . import native


def describe() -> str:
    """What `backends()` says of the CPU backend."""
    return (
        f"available: {_C.cpu_isas()[0]} kernels (this machine can run {', '.join(_C.cpu_isas())})"
    )


class CpuBackend:
    """Caches in host memory."""

    def unavailable(self, device: torch.device) -> str | None:
        """See `Backend`."""
        if device.type == "cpu":
            return None
        return f"the cache is on {device}; move it to the CPU or pass backend='reference'"

    def score(self, call: Call) -> None:
        """See `Backend`."""
        args = native.build(call)
        native.attach_workspace(args, _C.OP_SCORE)
        _C.score(args)

    def select(self, call: Call) -> Selection:
        """See `Backend`."""
        args, results = native.build(call), native.Results.for_select(call)
        results.attach(args)
        native.attach_workspace(args, _C.OP_SELECT)
        _C.select(args)
        assert results.kept is not None
        return Selection(kept=results.kept, lengths=results.lengths)

    def compact(self, call: Call, selection: Selection, return_indices: bool) -> Evicted:
        """See `Backend`."""
        args, results = native.build(call), native.Results.for_compact(call, selection)
        results.attach(args)
        native.attach_workspace(args, _C.OP_COMPACT)
        _C.compact(args)
        return results.evicted(return_indices)

    def evict(self, call: Call, return_indices: bool) -> Evicted:
        """See `Backend`."""
        args, results = native.build(call), native.Results.for_evict(call, return_indices)
        results.attach(args)
        native.attach_workspace(args, _C.OP_EVICT)
        _C.evict(args)
        return results.evicted(return_indices)
