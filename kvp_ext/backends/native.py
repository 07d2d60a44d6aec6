"""A `Call` as libkvp's `kvp_args`."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from .. import _C, packing
from .._call import Call
from ..threads import get_num_threads

OP_SCORE, OP_SELECT, OP_COMPACT, OP_EVICT = range(4)

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
    return (counts.data_ptr(), *counts.stride(), 0)


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


_scratch = threading.local()


def attach_workspace(args: _C.Args, op: int) -> None:
    """Gives the operation this thread's workspace, which grows and is kept between calls."""
    size = _C.workspace_bytes(op, args)
    buffer: Tensor | None = getattr(_scratch, "buffer", None)
    if buffer is None or buffer.numel() < size:
        buffer = _scratch.buffer = torch.empty(size, dtype=torch.uint8)
    args.workspace, args.workspace_bytes = buffer.data_ptr(), buffer.numel()


def workspace_held() -> int:
    """Bytes of workspace that this thread keeps."""
    buffer: Tensor | None = getattr(_scratch, "buffer", None)
    return 0 if buffer is None else buffer.numel()
