"""The operations: score, select, compact, and all three at once."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _backends
from ._call import Budget, Cache, Call, Mode, Order, Positions, prepare
from .active import active_policy
from .policy import Policy
from .results import Evicted, Selection


def evict_(
    k_cache: Cache,
    v_cache: Cache,
    pos: Positions,
    budget: Budget,
    *,
    policy: Policy | None = None,
    lengths: int | Tensor | None = None,
    sinks: int = 4,
    recent: int = 16,
    mode: Mode = "per_head",
    order: Order = "stable",
    scores: Cache | None = None,
    return_indices: bool = False,
    backend: str | None = None,
) -> Evicted:
    """Keeps the `budget` most useful entries of every (layer, sequence, KV head), in place.

    Survivors move to slots `0 … new_length-1` of their row and keep their logical position, so
    attention over `k_cache[..., :new_length, :]` is right with RoPE already applied. Slots past
    the new length keep stale finite values. Either everything is done or, on an error, nothing
    was written.

    Args:
        k_cache, v_cache: `[L, B, H, T, D]`, or a list of `[B, H, T_l, D]` layers (`None` layers
            are skipped); fp32, fp16 or bf16, keys post-RoPE. Any strides with unit stride in D;
            key and value head dims may differ.
        pos: int32 or int64 logical positions `[T]`, `[B, T]` or `[L, B, H, T]`, or a list of
            such layers. A negative position marks padding, which is never kept. Per-head
            positions are compacted in place; shared ones stay (heads keep different entries)
            and the survivors' are in the result. So per-head positions are what repeated eviction
            wants: slots past the new length get position -1 and are padding until you write new
            entries there. After a call with shared positions, the next call needs the survivors'
            (`evicted.pos`, of the slots they cover) or `lengths`.
        budget: entries kept, counting sinks and recent. An int, or integers `[L]`, `[L, H]` or
            `[L, B, H]` (`mode="union"`: `[L]` or `[L, B]`; `mode="model"`: `[B]`). A row that
            holds an entry keeps at least one.
        policy: the scorer; the one set by `kvp_ext.use` if neither it nor `scores` is given.
        lengths: valid entries per row: int, `[B]` or `[L, B, H]`. `None`: every entry with a
            position >= 0. Zero or less is an empty row.
        sinks, recent: first and last valid entries of a row that are always kept. Where they
            exceed the budget, the recent window shrinks first, then the sinks.
        mode: "per_head"; "union" (all heads of a layer keep the same slots: an entry ranks by
            its best rank in any head; they must have the same padding); "model" (`budget` is a
            total per sequence over all layers and heads; needs scores that can be compared
            across heads).
        order: "stable" keeps survivors in ascending slot order; "any" moves fewest entries.
        scores: fp32 `[L, B, H, T]` (or per layer), compacted along with the cache. Without
            `policy` they are the ranking. With `policy` only entries whose score is NaN are
            scored, so that scores are reused between calls; the tail becomes NaN.
        return_indices: also return the slot that every survivor came from.
        backend: "cpu", "reference", …; by default that of the cache's device.

    Returns:
        `Evicted`: new `lengths`, survivors' `pos`, `kept` on request, and `evicted`, which is
        False if nothing had to change (budget >= length and no padding in front).

    Raises:
        TypeError, ValueError, RuntimeError: naming the argument, what it was and what was
            expected. RuntimeError also where no policy is active or a backend is missing.
    """
    if scores is None and policy is None:
        policy = active_policy()
    call = prepare(
        k_cache=k_cache,
        v_cache=v_cache,
        pos=pos,
        scores=scores,
        lengths=lengths,
        budget=budget,
        sinks=sinks,
        recent=recent,
        mode=mode,
        order=order,
        policy=policy,
    )
    return _backends.resolve(backend, call.device).evict(call, return_indices)


def score(
    k_cache: Cache,
    v_cache: Cache,
    pos: Positions,
    *,
    policy: Policy | None = None,
    lengths: int | Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Scores every valid entry; higher is more useful.

    Arguments as for `evict_`.

    Returns:
        fp32 `[L, B, H, T]` (T of the longest layer), NaN at padding and skipped layers.
    """
    call = prepare(
        k_cache=k_cache,
        v_cache=v_cache,
        pos=pos,
        lengths=lengths,
        policy=active_policy() if policy is None else policy,
    )
    shape = (call.n_layers, call.n_batch, call.n_heads, max(call.slots, default=0))
    out = torch.full(shape, torch.nan, dtype=torch.float32, device=call.device)
    call.scores = [
        None if p is None else layer[:, :, : p.shape[2]]
        for p, layer in zip(call.pos, out.unbind(0), strict=True)
    ]
    chosen = _backends.resolve(backend, call.device)
    if call.present():
        chosen.score(call)
    return out


def select(
    scores: Cache,
    budget: Budget,
    *,
    pos: Positions,
    lengths: int | Tensor | None = None,
    sinks: int = 4,
    recent: int = 16,
    mode: Mode = "per_head",
    backend: str | None = None,
) -> Selection:
    """Selects the entries to keep, exactly: any count, never truncated, the same on every backend.

    Of two entries the higher score is kept, then the lower slot; NaN ranks below -inf and +0
    equals -0; sinks and recent rank above every score. Arguments as for `evict_`.

    Returns:
        `Selection`: the `kept` slots of each row, ascending, and the new `lengths`.
    """
    if scores is None:
        raise TypeError("scores is None, expected a tensor [L, B, H, T] or a list of layers")
    call = prepare(
        k_cache=None,
        v_cache=None,
        pos=pos,
        scores=scores,
        lengths=lengths,
        budget=budget,
        sinks=sinks,
        recent=recent,
        mode=mode,
    )
    return _backends.resolve(backend, call.device).select(call)


def compact_(
    k_cache: Cache,
    v_cache: Cache,
    pos: Positions,
    selection: Selection,
    *,
    scores: Cache | None = None,
    backend: str | None = None,
) -> Evicted:
    """Moves the selected entries of every row to its front, in place.

    `selection` comes from `select` or any other source; its `kept` slots ascend in each row.
    Other arguments as for `evict_`.
    """
    call = prepare(k_cache=k_cache, v_cache=v_cache, pos=pos, scores=scores)
    _check_selection(call, selection)
    call.capacity = selection.kept.shape[3]
    return _backends.resolve(backend, call.device).compact(call, selection, return_indices=True)


def _check_selection(call: Call, selection: Selection) -> None:
    parts = (getattr(selection, "kept", None), getattr(selection, "lengths", None))
    if not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(
            f"selection is {type(selection).__name__}, expected a kvp_ext.Selection of two tensors"
        )
    rows = (call.n_layers, call.n_batch, call.n_heads)
    for name, tensor, shape in (
        ("selection.lengths", selection.lengths, rows),
        ("selection.kept", selection.kept, (*rows, *selection.kept.shape[-1:])),
    ):
        if tensor.dtype != torch.int32 or tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)}, expected torch.int32 {list(shape)}"
            )
        if tensor.device != call.device or not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous and on {call.device}")
