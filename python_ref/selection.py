"""Selection: which entries a row keeps, given their scores. Exact, and the same everywhere.

``ranking`` is the one order of this project. Every backend keeps the set that it defines.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .budgets import Budget, expand_budget, expand_total
from .positions import expand_positions

MODES = ("per_head", "union", "model")


@dataclass
class Selection:
    """Entries to keep.

    Attributes:
        kept: int32 [L, B, H, N], the slots kept in ascending order, then -1. N is
            min(T, max(budget, 1)) for an int budget in modes "per_head" and "union", else T.
        lengths: int32 [L, B, H], how many entries each row keeps.
    """

    kept: Tensor
    lengths: Tensor


def valid_entries(pos: Tensor, lengths: Tensor | int | None = None) -> Tensor:
    """Which entries are not padding, [L, B, H, T] bool.

    An entry is valid if its position is >= 0 and fewer than ``lengths`` valid entries precede it.

    Args:
        pos: integers [L, B, H, T].
        lengths: integer, [B] or [L, B, H]; None counts every position >= 0, and a row of length
            <= 0 is empty.
    """
    occupied = pos >= 0
    if lengths is None:
        return occupied
    layers, batch, heads, _ = pos.shape
    length = torch.as_tensor(lengths, device=pos.device)
    if tuple(length.shape) not in ((), (batch,), (layers, batch, heads)):
        raise ValueError(
            f"lengths: got shape {list(length.shape)}, expected an int, [B] or [L, B, H] with "
            f"[L, B, H] = {[layers, batch, heads]}"
        )
    if length.dim() == 1:
        length = length[:, None]
    preceding = occupied.cumsum(dim=-1) - occupied.long()
    return occupied & (preceding < length.expand(layers, batch, heads)[..., None])


def pinned_entries(valid: Tensor, budget: Tensor, sinks: int, recent: int) -> Tensor:
    """Which entries are kept whatever their score, [..., T] bool.

    The first ``sinks`` and the last ``recent`` valid entries. They count inside the budget; if it
    is below sinks + recent, the recent window shrinks first.

    Args:
        valid: bool [..., T].
        budget: integers [...].
    """
    sinks_kept = budget.clamp(max=sinks)[..., None]
    recent_kept = (budget - sinks).clamp(0, recent)[..., None]
    index = valid.cumsum(dim=-1)  # of a valid entry: 1 for the first
    count = valid.sum(dim=-1, keepdim=True)
    return valid & ((index <= sinks_kept) | (index > count - recent_kept))


def ranking(scores: Tensor, valid: Tensor, pinned: Tensor | None = None) -> Tensor:
    """THE order of entries: the slots of each row, best first, [..., T] int64.

    Pinned entries, then by score descending with NaN below -inf and +0 equal to -0, then padding.
    Entries that compare equal stand in ascending slot order.

    Args:
        scores: [..., T] of any float dtype.
        valid, pinned: bool [..., T]; nothing is pinned by default.
    """
    unscored = scores.isnan()
    tier = torch.where(unscored, 2, 1)
    if pinned is not None:
        tier = tier.masked_fill(pinned, 0)
    tier = tier.masked_fill(~valid, 3)
    # Adding +0 turns -0 into +0: radix sorts would tell them apart.
    comparable = scores.masked_fill(unscored, -torch.inf) + 0.0
    by_score = comparable.argsort(dim=-1, descending=True, stable=True)
    by_tier = tier.gather(-1, by_score).argsort(dim=-1, stable=True)
    return by_score.gather(-1, by_tier)


def ranks(order: Tensor) -> Tensor:
    """Rank of each slot, 0 = best: the inverse of the permutation ``order`` [..., T]."""
    place = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)


def keep_per_head(scores: Tensor, valid: Tensor, budget: Tensor, sinks: int, recent: int) -> Tensor:
    """The ``budget`` best entries of each row, [..., T] bool. budget: integers [...]."""
    budget = budget.clamp(min=1)
    pinned = pinned_entries(valid, budget, sinks, recent)
    return valid & (ranks(ranking(scores, valid, pinned)) < budget[..., None])


def keep_union(scores: Tensor, valid: Tensor, budget: Tensor, sinks: int, recent: int) -> Tensor:
    """The same slots in all heads of each (layer, sequence), [L, B, H, T] bool.

    The priority of a slot is its best rank in any head; the ``budget`` smallest priorities are
    kept, ties in favour of the lower slot. The heads have the same padding and budget: head 0's.
    """
    valid = valid[:, :, :1].expand_as(valid)
    budget = budget[:, :, 0].clamp(min=1)
    pinned = pinned_entries(valid, budget[..., None].expand(valid.shape[:-1]), sinks, recent)
    priority = ranks(ranking(scores, valid, pinned)).amin(dim=2)
    slot_valid = valid[:, :, 0]
    kept = ranks(ranking(-priority.double(), slot_valid)) < budget[..., None]
    return (kept & slot_valid)[:, :, None].expand_as(valid)


def keep_model(scores: Tensor, valid: Tensor, total: Tensor, sinks: int, recent: int) -> Tensor:
    """The best entries of each sequence over all its layers and heads, [L, B, H, T] bool.

    A row first pins as it would with the budget total // (rows that hold an entry); with
    sinks = recent = 0 it pins its best entry, so no row is emptied. The rest of ``total`` [B] goes
    to the best entries of the sequence by score, ties in favour of the lower layer, head, slot.
    """
    layers, batch, heads, slots = scores.shape
    rows = valid.any(dim=-1).sum(dim=(0, 2))
    if bool((total < rows).any()):
        worst = int((rows - total).argmax())
        raise ValueError(
            f"budget: got a total of {int(total[worst])} for sequence {worst}, expected at least "
            f"{int(rows[worst])}, one for each (layer, head) that holds an entry"
        )
    share = (total // rows.clamp(min=1))[None, :, None].expand(layers, batch, heads)
    if sinks + recent > 0:
        pinned = pinned_entries(valid, share, sinks, recent)
    else:
        pinned = valid & (ranks(ranking(scores, valid)) == 0)

    def by_sequence(x: Tensor) -> Tensor:
        return x.permute(1, 0, 2, 3).reshape(batch, layers * heads * slots)

    valid_b = by_sequence(valid)
    order = ranking(by_sequence(scores), valid_b, by_sequence(pinned))
    kept = valid_b & (ranks(order) < total[:, None])
    return kept.reshape(batch, layers, heads, slots).permute(1, 0, 2, 3)


def slots_of(kept: Tensor, capacity: int) -> Selection:
    """The kept slots of a mask [L, B, H, T] in ascending order, as a Selection of N = capacity."""
    lengths = kept.sum(dim=-1)
    slots = (~kept).long().argsort(dim=-1, stable=True)[..., :capacity]
    place = torch.arange(capacity, device=kept.device)
    slots = slots.masked_fill(place >= lengths[..., None], -1)
    return Selection(slots.to(torch.int32), lengths.to(torch.int32))


def select(
    scores: Tensor,
    budget: Budget,
    *,
    pos: Tensor,
    lengths: Tensor | int | None = None,
    sinks: int = 4,
    recent: int = 16,
    mode: str = "per_head",
) -> Selection:
    """Select the entries to keep.

    A row that holds an entry keeps at least one: a budget of 0 counts as 1.

    Args:
        scores: float [L, B, H, T], higher = keep, ordered as ``ranking`` says. Where layers have
            different T this is the largest, and the slots that a layer lacks have position -1.
        budget: entries kept in a row: an int, or integers [L], [L, H] or [L, B, H]. In mode
            "model" the total of a sequence: an int or integers [B].
        pos: integers [T], [B, T] or [L, B, H, T]; a negative position is padding.
        lengths: valid entries per row: None (every position >= 0), an int, [B] or [L, B, H].
        sinks, recent: leading and trailing valid entries that are always kept, inside the budget;
            the recent window shrinks first.
        mode: "per_head"; "union", all heads of a layer keep the same slots; or "model".

    Raises:
        TypeError: a budget that is not an integer.
        ValueError: any other argument out of its range or of the wrong shape, by name.
    """
    if scores.dim() != 4 or not scores.is_floating_point():
        raise ValueError(
            f"scores: got {scores.dtype} of shape {list(scores.shape)}, expected float [L, B, H, T]"
        )
    for name, count in (("sinks", sinks), ("recent", recent)):
        if count < 0:
            raise ValueError(f"{name}: got {count}, expected at least 0")
    layers, batch, heads, slots = scores.shape
    valid = valid_entries(expand_positions(pos, layers, batch, heads, slots), lengths)
    capacity = slots
    if isinstance(budget, int) and mode != "model":
        capacity = min(slots, max(budget, 1))
    if mode == "per_head":
        rows = expand_budget(budget, layers, batch, heads, scores.device)
        kept = keep_per_head(scores, valid, rows, sinks, recent)
    elif mode == "union":
        rows = expand_budget(budget, layers, batch, heads, scores.device)
        kept = keep_union(scores, valid, rows, sinks, recent)
    elif mode == "model":
        kept = keep_model(scores, valid, expand_total(budget, batch, scores.device), sinks, recent)
    else:
        raise ValueError(f"mode: got {mode!r}, expected one of {MODES}")
    return slots_of(kept, capacity)
