"""The reference backend: the pure-PyTorch definitions of `python_ref`, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from python_ref import compaction, fold, selection

from .. import _C
from .._call import Call
from ..policy import Policy
from ..results import Evicted, Selection
from . import native


class ReferenceBackend:
    """Slow and plain: what the other backends are compared with."""

    def unavailable(self, device: torch.device) -> str | None:
        """See `Backend`."""
        return None

    def score(self, call: Call) -> None:
        """See `Backend`."""
        _check(call, _C.OP_SCORE)
        assert call.scores is not None
        # Inference mode may write tensors of either kind, so no write fails half-way.
        with torch.inference_mode():
            _write(call, _score(call))

    def select(self, call: Call) -> Selection:
        """See `Backend`."""
        _check(call, _C.OP_SELECT, native.Results.for_select(call))
        return _select(call, _stacked_scores(call))

    def compact(self, call: Call, selection: Selection, return_indices: bool) -> Evicted:
        """See `Backend`."""
        _check(call, _C.OP_COMPACT, native.Results.for_compact(call, selection))
        with torch.inference_mode():
            done = _compact(call, selection, return_indices)
        return _outside_inference(done)

    def evict(self, call: Call, return_indices: bool) -> Evicted:
        """See `Backend`."""
        _check(call, _C.OP_EVICT, native.Results.for_evict(call, return_indices))
        with torch.inference_mode():
            if call.policy is None:
                scores = _stacked_scores(call)
            else:
                scores = _score(call)
                if call.scores is not None:
                    known = _stacked_scores(call)
                    scores = torch.where(known.isnan(), scores, known)
                    _write(call, scores)
            done = _compact(call, _select(call, scores), return_indices)
        return _outside_inference(done)


def _outside_inference(done: Evicted) -> Evicted:
    """Results that the caller may write, wherever it is."""
    return Evicted(
        lengths=done.lengths.clone(),
        pos=done.pos.clone(),
        kept=None if done.kept is None else done.kept.clone(),
        changed=done.changed.clone(),
    )


def _check(call: Call, op: int, results: native.Results | None = None) -> None:
    """The memory and geometry checks that every backend makes."""
    args = native.build(call)
    if call.device.type != "cpu":
        # The host may not read this memory; libkvp knows that of CUDA's.
        args.device = _C.CUDA
        if call.policy is not None:
            args.policy = _unread_policy(call, call.policy)
    if results is not None:
        results.attach(args)
    _C.validate(op, args)


def _unread_policy(call: Call, policy: Policy) -> _C.PolicyView:
    """The policy's geometry; its weights need not be in the form of CUDA's kernels."""
    k = next((k for k in call.k if k is not None), None)
    dtype = native.fragment_dtype(torch.float32 if k is None else k.dtype)
    return native.view_policy(policy, dtype, policy.packed(), policy.folded.positions)


def _score(call: Call) -> Tensor:
    """Scores `[L, B, H, T]` fp32 of all valid entries, NaN elsewhere."""
    assert call.policy is not None
    if not call.present():
        return _blank(call)
    scores = fold.score(call.policy.folded, call.k, call.v, call.pos, dtype=torch.float32)
    valid = selection.valid_entries(_stacked_pos(call), call.lengths)
    return scores.masked_fill(~valid, torch.nan)


def _blank(call: Call) -> Tensor:
    shape = (call.n_layers, call.n_batch, call.n_heads, max(call.slots, default=0))
    return torch.full(shape, torch.nan, dtype=torch.float32, device=call.device)


def _stacked_scores(call: Call) -> Tensor:
    stacked = _blank(call)
    assert call.scores is not None
    for i in call.present():
        layer = call.scores[i]
        assert layer is not None
        stacked[i, ..., : layer.shape[2]] = layer
    return stacked


def _stacked_pos(call: Call) -> Tensor:
    """`[L, B, H, T]` with T of the longest layer; slots that a layer lacks are padding."""
    stacked = _blank(call).to(call.pos_dtype).fill_(-1)
    for i in call.present():
        layer = call.pos[i]
        assert layer is not None
        stacked[i, ..., : layer.shape[2]] = layer
    return stacked


def _write(call: Call, scores: Tensor) -> None:
    assert call.scores is not None
    for i in call.present():
        layer = call.scores[i]
        assert layer is not None
        layer.copy_(scores[i, ..., : layer.shape[2]])


def _select(call: Call, scores: Tensor) -> Selection:
    rows = scores.shape[:3]
    if rows.numel() == 0:
        return Selection(
            kept=torch.empty(*rows, call.capacity, dtype=torch.int32, device=call.device),
            lengths=torch.empty(rows, dtype=torch.int32, device=call.device),
        )
    budget = call.budget
    if isinstance(budget, Tensor) and call.mode == "model":
        budget = budget[0, :, 0]
    chosen = selection.select(
        scores,
        budget,
        pos=_stacked_pos(call),
        lengths=call.lengths,
        sinks=call.sinks,
        recent=call.recent,
        mode=call.mode,
    )
    return Selection(kept=chosen.kept[..., : call.capacity].contiguous(), lengths=chosen.lengths)


def _compact(call: Call, chosen: Selection, return_indices: bool) -> Evicted:
    stacked = _stacked_scores(call) if call.scores is not None else None
    # The positions of a layer are a view into the caller's where heads own them, so they move in
    # place; shared ones are expanded and must not be written.
    pos = call.pos if call.pos_per_head else _stacked_pos(call)
    done = compaction.compact_(
        call.k, call.v, pos, stacked, chosen, order=call.order, lengths=call.lengths
    )
    if stacked is not None:
        _write(call, stacked)
    return Evicted(
        lengths=done.lengths,
        pos=done.pos,
        kept=done.kept if return_indices else None,
        changed=torch.tensor([int(done.evicted)], dtype=torch.int32, device=call.device),
    )
