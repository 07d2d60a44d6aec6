"""The CPU backend: libkvp's kernels, for the instruction set found at run time."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

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
        _workspace = native.attach_workspace(args, _C.OP_SCORE)
        _C.score(args)
        _count_as_written(call.scores or [])

    def select(self, call: Call) -> Selection:
        """See `Backend`."""
        args, results = native.build(call), native.Results.for_select(call)
        results.attach(args)
        _workspace = native.attach_workspace(args, _C.OP_SELECT)
        _C.select(args)
        assert results.kept is not None
        return Selection(kept=results.kept, lengths=results.lengths)

    def compact(self, call: Call, selection: Selection, return_indices: bool) -> Evicted:
        """See `Backend`."""
        args, results = native.build(call), native.Results.for_compact(call, selection)
        results.attach(args)
        _workspace = native.attach_workspace(args, _C.OP_COMPACT)
        _C.compact(args)
        return _written(call, results.evicted(return_indices))

    def evict(self, call: Call, return_indices: bool) -> Evicted:
        """See `Backend`."""
        args, results = native.build(call), native.Results.for_evict(call, return_indices)
        results.attach(args)
        _workspace = native.attach_workspace(args, _C.OP_EVICT)
        _C.evict(args)
        return _written(call, results.evicted(return_indices))


def _written(call: Call, evicted: Evicted) -> Evicted:
    if evicted.evicted:
        _count_as_written([*call.k, *call.v, *(call.scores or [])])
        if call.pos_per_head:
            _count_as_written(call.pos)
    return evicted


def _count_as_written(tensors: Iterable[Tensor | None]) -> None:
    """Tells autograd, which cannot see writes through pointers, that saved tensors are stale."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            increment_version(tensor)
