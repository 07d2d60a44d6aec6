"""A `Call` as libkvp's `kvp_args`."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _C, packing
from .._call import Call
from ..results import Evicted, Selection
from ..threads import get_num_threads

_DTYPES = {
    torch.float32: _C.FLOAT32,
    torch.float16: _C.FLOAT16,
    torch.bfloat16: _C.BFLOAT16,
    torch.int32: _C.INT32,
    torch.int64: _C.INT64,
}
_MODES = {"per_head": _C.PER_HEAD, "union": _C.UNION, "model": _C.MODEL}
_ORDERS = {"stable": _C.STABLE, "any": _C.ANY}
_ABSENT = (0, 0, 0, 0, 0)


def _view(tensor: Tensor | None) -> tuple[int, ...]:
    if tensor is None:
        return _ABSENT
    strides = tensor.stride()
    return (tensor.data_ptr(), *strides[:3], strides[3] if len(strides) == 4 else 1)


def _counts(counts: Tensor | None, value: int) -> tuple[int, int, int, int, int]:
    if counts is None:
        return (0, 0, 0, 0, value)
    layer, batch, head = counts.stride()
    return (counts.data_ptr(), layer, batch, head, 0)


def build(call: Call) -> _C.Args:
    """Arguments without results and workspace; `call` must outlive them."""
    args = _C.Args()
    args.threads = get_num_threads()
    args.n_layers, args.n_batch, args.n_heads = call.n_layers, call.n_batch, call.n_heads
    flat: list[int] = []
    for i in range(call.n_layers):
        flat.append(call.slots[i])
        flat += _view(call.k[i])
        flat += _view(call.v[i])
        flat += _view(call.pos[i])
        flat += _view(call.scores[i] if call.scores is not None else None)
    args.set_layers(flat)
    args.pos_dtype = _DTYPES[call.pos_dtype]
    k = next((k for k in call.k if k is not None), None)
    v = next((v for v in call.v if v is not None), None)
    if k is not None and v is not None:
        args.dtype = _DTYPES[k.dtype]
        args.head_dim_k, args.head_dim_v = k.shape[3], v.shape[3]
    args.lengths = _counts(call.lengths, -1)
    if isinstance(call.budget, Tensor):
        args.budget = _counts(call.budget, 0)
    else:
        args.budget = _counts(None, call.budget)
    args.mode, args.order = _MODES[call.mode], _ORDERS[call.order]
    args.sinks, args.recent = call.sinks, call.recent
    args.capacity = call.capacity
    if call.policy is not None:
        policy = call.policy
        args.policy = _C.PolicyView(
            packing.shape_of(policy.folded),
            policy.packed().data_ptr(),
            policy.folded.positions.data_ptr(),
        )
    return args


@dataclass(slots=True)
class Results:
    """Where an operation writes: fresh tensors, or for compaction the selection it is given."""

    lengths: Tensor
    kept: Tensor | None = None
    pos: Tensor | None = None
    changed: Tensor | None = None

    @classmethod
    def for_select(cls, call: Call) -> Results:
        """`lengths` and `kept`."""
        return cls(lengths=_rows(call, torch.int32), kept=_slots(call, torch.int32))

    @classmethod
    def for_compact(cls, call: Call, selection: Selection) -> Results:
        """`pos` and `changed`; `lengths` and `kept` are read."""
        return cls(
            lengths=selection.lengths,
            kept=selection.kept,
            pos=_slots(call, call.pos_dtype),
            changed=torch.empty(1, dtype=torch.int32, device=call.device),
        )

    @classmethod
    def for_evict(cls, call: Call, return_indices: bool) -> Results:
        """`lengths`, `pos`, `changed`, and `kept` on request."""
        return cls(
            lengths=_rows(call, torch.int32),
            kept=_slots(call, torch.int32) if return_indices else None,
            pos=_slots(call, call.pos_dtype),
            changed=torch.empty(1, dtype=torch.int32, device=call.device),
        )

    def attach(self, args: _C.Args) -> None:
        """Points the arguments at these tensors."""
        args.new_lengths = self.lengths.data_ptr()
        args.kept = 0 if self.kept is None else self.kept.data_ptr()
        args.new_pos = 0 if self.pos is None else self.pos.data_ptr()
        args.changed = 0 if self.changed is None else self.changed.data_ptr()

    def evicted(self, return_indices: bool) -> Evicted:
        """The results of a compaction or eviction as the user sees them."""
        assert self.pos is not None
        assert self.changed is not None
        kept = self.kept if return_indices else None
        return Evicted(lengths=self.lengths, pos=self.pos, kept=kept, changed=self.changed)


def _rows(call: Call, dtype: torch.dtype) -> Tensor:
    shape = (call.n_layers, call.n_batch, call.n_heads)
    return torch.empty(shape, dtype=dtype, device=call.device)


def _slots(call: Call, dtype: torch.dtype) -> Tensor:
    shape = (call.n_layers, call.n_batch, call.n_heads, call.capacity)
    return torch.empty(shape, dtype=dtype, device=call.device)


_scratch = threading.local()


def attach_workspace(args: _C.Args, op: int) -> Tensor:
    """Gives the operation this thread's workspace, which grows and is kept between calls.

    Hold on to the result during the operation: a thread that ends takes its workspace along.
    """
    size = _C.workspace_bytes(op, args)
    buffer: Tensor | None = getattr(_scratch, "buffer", None)
    if buffer is None or buffer.numel() < size:
        buffer = _scratch.buffer = torch.empty(size, dtype=torch.uint8, device="cpu")
    args.workspace, args.workspace_bytes = buffer.data_ptr(), buffer.numel()
    return buffer


def workspace_held() -> int:
    """Bytes of workspace that this thread keeps."""
    buffer: Tensor | None = getattr(_scratch, "buffer", None)
    return 0 if buffer is None else buffer.numel()
