"""What an allocator is, and how rows share what a sequence may keep."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..budgets import as_counts
from ..selection import pinned_entries, ranking, ranks

_REGISTRY: dict[str, Allocator] = {}


@dataclass(frozen=True)
class Request:
    """What an allocator shares among the rows of one sequence.

    Attributes:
        scores: fp32 [L, H, T], higher = keep, NaN lowest; what stands at padding does not matter.
        valid: bool [L, H, T], entries that are not padding.
        pinned: bool [L, H, T], entries that each row keeps in any case: as many as `low`.
        low, high: int64 [L, H], the fewest and the most entries of each row.
        total: entries of all rows together, from low.sum() to high.sum().
    """

    scores: Tensor
    valid: Tensor
    pinned: Tensor
    low: Tensor
    high: Tensor
    total: int


@dataclass(frozen=True)
class Allocator:
    """A way to share a budget.

    Attributes:
        name: in the registry.
        share: wished budgets [L, H] of one sequence, real numbers, from a `Request` and options.
        compares: the span in which scores must be comparable (see `comparability`): "" (it reads
            none), the heads of a "layer", or the whole "model".
        options: with their defaults.
    """

    name: str
    share: Callable[..., Tensor]
    compares: str
    options: dict[str, Any]


def allocator(name: str, *, compares: str = "") -> Callable[[Callable[..., Tensor]], Allocator]:
    """Register a function that shares one sequence's budget among its rows.

    It takes a `Request` and options, and returns wished budgets [L, H] that need neither be whole
    nor within bounds: `allocate` makes them so.
    """

    def register(share: Callable[..., Tensor]) -> Allocator:
        parameters = inspect.signature(share).parameters.values()
        options = {p.name: p.default for p in parameters if p.default is not p.empty}
        made = Allocator(name, share, compares, options)
        object.__setattr__(made, "__doc__", inspect.getdoc(share))
        _REGISTRY[name] = made
        return made

    return register


def allocators() -> dict[str, Allocator]:
    """The allocators that any model can use, by name."""
    return dict(sorted(_REGISTRY.items()))


@torch.no_grad()
def allocate(
    allocator: str | Allocator,
    scores: Tensor,
    budget: int | Tensor,
    *,
    valid: Tensor | None = None,
    sinks: int = 4,
    recent: int = 16,
    floor: int = 1,
    **options: Any,
) -> Tensor:
    """Budgets of all rows.

    Every sequence keeps `L H budget` entries, or all that it holds if those are fewer. No row gets
    more than it holds, nor less than `sinks + recent` and `floor`, as long as it holds that many
    and the average is no smaller.

    Args:
        allocator: one of `allocators()` by its name, or one made from data.
        scores: [L, B, H, T], higher = keep, NaN lowest.
        budget: entries per row on average, an int or integers [B]; at least 1.
        valid: bool [L, B, H, T], entries that are not padding; by default all.
        sinks, recent: first and last entries of a row that the eviction will keep in any case.
        floor: fewest entries of a row.
        **options: of the allocator.

    Returns:
        int64 [L, B, H]; 0 where a row holds nothing.

    Raises:
        ValueError: an unknown name or option, or an argument out of its range.
    """
    if isinstance(allocator, str):
        if allocator not in _REGISTRY:
            known = ", ".join(allocators())
            raise ValueError(f"allocator: got {allocator!r}, expected one of {known}")
        allocator = _REGISTRY[allocator]
    if unknown := sorted(set(options) - set(allocator.options)):
        raise ValueError(
            f"options: got {unknown}, expected any of {sorted(allocator.options)} of "
            f"{allocator.name!r}"
        )
    if scores.dim() != 4 or not scores.is_floating_point():
        raise ValueError(
            f"scores: got {scores.dtype} of shape {list(scores.shape)}, expected float [L, B, H, T]"
        )
    for what, count in (("sinks", sinks), ("recent", recent), ("floor", floor)):
        if count < 0:
            raise ValueError(f"{what}: got {count}, expected at least 0")
    layers, batch, heads, _ = scores.shape
    averages = as_counts(budget).expand(batch).tolist()
    if min(averages, default=1) < 1:
        raise ValueError(f"budget: got {min(averages)}, expected at least 1")
    if valid is None:
        valid = torch.ones_like(scores, dtype=torch.bool)
    budgets = torch.zeros(layers, batch, heads, dtype=torch.int64, device=scores.device)
    for b, average in enumerate(averages):
        held = valid[:, b].sum(-1)
        low = held.clamp(max=min(max(1, floor, sinks + recent), average))
        pins = pinned_entries(valid[:, b], torch.full_like(held, average), sinks, recent)
        ranked = ranks(ranking(scores[:, b], valid[:, b], pins))
        total = min(average * layers * heads, int(held.sum()))
        request = Request(
            scores[:, b], valid[:, b], (ranked < low[..., None]) & valid[:, b], low, held, total
        )
        budgets[:, b] = whole_shares(allocator.share(request, **options), low, held, total)
    return budgets


def whole_shares(wished: Tensor, low: Tensor, high: Tensor, total: int) -> Tensor:
    """Whole numbers from low to high that add up to `total`, as near to the wishes as may be.

    The wishes are scaled so that, cut off at the bounds, they add up; what rounding down leaves
    goes to the largest remainders, the first of equal ones.

    Args:
        wished: [L, H] real, at least 0.
        low, high: int64 [L, H].
        total: from low.sum() to high.sum().
    """
    shape, device = wished.shape, wished.device
    if not bool(wished.isfinite().all()):
        raise ValueError("wished: got a number that is not finite, expected numbers from 0 on")
    wish = wished.double().flatten().clamp(min=0).cpu()
    least, most = low.flatten().double().cpu(), high.flatten().double().cpu()
    # A row that wishes nothing still takes its part once all others are full.
    wish = wish + 1e-9 * max(1.0, float(wish.max()) if wish.numel() else 1.0)

    def at(scale: float) -> Tensor:
        return torch.minimum(torch.maximum(wish * scale, least), most)

    under, over = 0.0, 1.0
    while float(at(over).sum()) < total - 1e-6 and over < 1e30:
        over *= 2.0
    for _ in range(200):
        middle = (under + over) / 2
        if float(at(middle).sum()) < total:
            under = middle
        else:
            over = middle
    exact = at(over)
    shares = exact.floor()
    first = (exact - shares).argsort(descending=True, stable=True).tolist()
    left = total - int(shares.sum())
    while left > 0:  # once, unless rows are full
        for i in first:
            if left > 0 and shares[i] < most[i]:
                shares[i] += 1
                left -= 1
    return shares.to(torch.int64).reshape(shape).to(device)


def counts_of_best(scores: Tensor, eligible: Tensor, count: int) -> Tensor:
    """How many of the `count` best eligible entries of all rows together each row has.

    Args:
        scores: [..., T], compared as `selection.ranking` does.
        eligible: bool [..., T].

    Returns:
        int64 [...].
    """
    order = ranking(scores.flatten(), eligible.flatten())
    best = (ranks(order) < count) & eligible.flatten()
    return best.view_as(eligible).sum(-1)
