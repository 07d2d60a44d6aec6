"""The CPU backend: libkvp's kernels, for the instruction set found at run time."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _C
from .._call import Call
from ..results import Evicted, Selection
from . import native


def describe() -> str:
    """What `backends()` says of the CPU backend."""
    return f"available: {_C.cpu_isas()[0]} kernels (built: {', '.join(_C.cpu_isas())})"


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
        native.attach_workspace(args, native.OP_SCORE)
        _C.score(args)

    def select(self, call: Call) -> Selection:
        """See `Backend`."""
        args = native.build(call)
        shape = (call.n_layers, call.n_batch, call.n_heads)
        lengths = torch.empty(shape, dtype=torch.int32)
        kept = torch.empty(*shape, call.capacity, dtype=torch.int32)
        args.new_lengths, args.kept = lengths.data_ptr(), kept.data_ptr()
        native.attach_workspace(args, native.OP_SELECT)
        _C.select(args)
        return Selection(kept=kept, lengths=lengths)

    def compact(self, call: Call, selection: Selection, return_indices: bool) -> Evicted:
        """See `Backend`."""
        args = native.build(call)
        args.new_lengths = selection.lengths.data_ptr()
        args.kept = selection.kept.data_ptr()
        pos, changed = _results(call)
        args.new_pos, args.changed = pos.data_ptr(), changed.data_ptr()
        native.attach_workspace(args, native.OP_COMPACT)
        _C.compact(args)
        return Evicted(
            lengths=selection.lengths,
            pos=pos,
            kept=selection.kept if return_indices else None,
            changed=changed,
        )

    def evict(self, call: Call, return_indices: bool) -> Evicted:
        """See `Backend`."""
        args = native.build(call)
        shape = (call.n_layers, call.n_batch, call.n_heads)
        lengths = torch.empty(shape, dtype=torch.int32)
        pos, changed = _results(call)
        kept = None
        if return_indices:
            kept = torch.empty(*shape, call.capacity, dtype=torch.int32)
            args.kept = kept.data_ptr()
        args.new_lengths, args.new_pos = lengths.data_ptr(), pos.data_ptr()
        args.changed = changed.data_ptr()
        native.attach_workspace(args, native.OP_EVICT)
        _C.evict(args)
        return Evicted(lengths=lengths, pos=pos, kept=kept, changed=changed)


def _results(call: Call) -> tuple[Tensor, Tensor]:
    shape = (call.n_layers, call.n_batch, call.n_heads, call.capacity)
    return torch.empty(shape, dtype=call.pos_dtype), torch.empty(1, dtype=torch.int32)
