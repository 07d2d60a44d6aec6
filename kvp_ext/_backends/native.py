"""Backends in libkvp: a `Call` as its `kvp_args`, and the operations on them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from .. import _C, packing
from .._call import Call
from ..policy import Policy
from ..results import Evicted, Selection
from ..threads import get_num_threads

DTYPES = {
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


def build(call: Call, device: int = _C.CPU) -> _C.Args:
    """Arguments without results and workspace; `call` must outlive them."""
    args = _C.Args()
    args.device = device
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
    args.pos_dtype = DTYPES[call.pos_dtype]
    k = next((k for k in call.k if k is not None), None)
    v = next((v for v in call.v if v is not None), None)
    if k is not None and v is not None:
        args.dtype = DTYPES[k.dtype]
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
        args.policy = _policy_view(call.policy, device, torch.float32 if k is None else k.dtype)
    return args


def _policy_view(policy: Policy, device: int, cache_dtype: torch.dtype) -> _C.PolicyView:
    """The policy in the form that the device's kernels read."""
    if device == _C.CPU:
        return view_policy(policy, torch.float32, policy.packed(), policy.folded.positions)
    dtype = fragment_dtype(cache_dtype)
    return view_policy(policy, dtype, *policy.fragments(dtype))


def fragment_dtype(cache_dtype: torch.dtype) -> torch.dtype:
    """Of the weights that tensor cores multiply with a cache."""
    return torch.float16 if cache_dtype == torch.float16 else torch.bfloat16


def view_policy(
    policy: Policy, dtype: torch.dtype, weights: Tensor, positions: Tensor
) -> _C.PolicyView:
    """What libkvp is told of a policy whose weights it finds in these tensors."""
    return _C.PolicyView(
        packing.shape_of(policy.folded), DTYPES[dtype], weights.data_ptr(), positions.data_ptr()
    )


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


class NativeBackend:
    """The operations of a libkvp device on tensors in host memory."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._scratch = threading.local()

    def unavailable(self, device: torch.device) -> str | None:
        """See `Backend`."""
        if device.type == "cpu":
            return None
        return f"the cache is on {device}; move it to the CPU or pass backend='reference'"

    def score(self, call: Call) -> None:
        """See `Backend`."""
        self._run(call, _C.OP_SCORE, None)
        _count_as_written(call.scores or [])

    def select(self, call: Call) -> Selection:
        """See `Backend`."""
        results = Results.for_select(call)
        self._run(call, _C.OP_SELECT, results)
        assert results.kept is not None
        return Selection(kept=results.kept, lengths=results.lengths)

    def compact(self, call: Call, selection: Selection, return_indices: bool) -> Evicted:
        """See `Backend`."""
        results = Results.for_compact(call, selection)
        self._run(call, _C.OP_COMPACT, results)
        return self._written(call, results.evicted(return_indices))

    def evict(self, call: Call, return_indices: bool) -> Evicted:
        """See `Backend`."""
        results = Results.for_evict(call, return_indices)
        self._run(call, _C.OP_EVICT, results)
        return self._written(call, results.evicted(return_indices))

    def workspace_held(self) -> int:
        """Bytes of workspace that this thread keeps."""
        buffer: Tensor | None = getattr(self._scratch, "buffer", None)
        return 0 if buffer is None else buffer.numel()

    def _run(self, call: Call, op: int, results: Results | None) -> None:
        args = build(call, self._device)
        args.stream = self._stream(call)
        if results is not None:
            results.attach(args)
        workspace = self._workspace(_C.workspace_bytes(op, args), call.device)
        args.workspace, args.workspace_bytes = workspace.data_ptr(), workspace.numel()
        _OPERATIONS[op](args)

    def _stream(self, call: Call) -> int:
        return 0

    def _workspace(self, size: int, device: torch.device) -> Tensor:
        """This thread's workspace, which grows and is kept between calls."""
        buffer: Tensor | None = getattr(self._scratch, "buffer", None)
        if buffer is None or buffer.numel() < size:
            buffer = self._scratch.buffer = torch.empty(size, dtype=torch.uint8, device="cpu")
        return buffer

    def _written(self, call: Call, evicted: Evicted) -> Evicted:
        if self._may_have_changed(evicted):
            _count_as_written([*call.k, *call.v, *(call.scores or [])])
            if call.pos_per_head:
                _count_as_written(call.pos)
        return evicted

    def _may_have_changed(self, evicted: Evicted) -> bool:
        return evicted.evicted


_OPERATIONS = {
    _C.OP_SCORE: _C.score,
    _C.OP_SELECT: _C.select,
    _C.OP_COMPACT: _C.compact,
    _C.OP_EVICT: _C.evict,
}


def _count_as_written(tensors: Iterable[Tensor | None]) -> None:
    """Tells autograd, which cannot see writes through pointers, that saved tensors are stale."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            increment_version(tensor)
