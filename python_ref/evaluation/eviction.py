"""Budgets, and eviction of a copy of the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import kvp_ext
from python_ref.budgets import budget_from_ratio
from python_ref.evaluation.allocation import UNIFORM, Allocation


@dataclass(frozen=True)
class Survivors:
    """What an eviction left, with T the length of the longest row.

    Attributes:
        k, v: [L, H, T, D]; whatever stands past the length of a row is padding.
        kept: [L, H, T] int64, the slots they came from, then -1.
    """

    k: Tensor
    v: Tensor
    kept: Tensor

    @property
    def lengths(self) -> Tensor:
        """How many entries each row holds, int64 [L, H]."""
        return (self.kept >= 0).sum(dim=-1)


def evict(
    k: Tensor,
    v: Tensor,
    scores: Tensor,
    budget: int,
    *,
    sinks: int = 4,
    recent: int = 16,
    allocator: Allocation = UNIFORM,
) -> Survivors:
    """Evicts a copy of a cache to `budget` entries a head on average; nothing is masked.

    Args:
        k, v: [L, H, n, D], entries at positions 0 .. n - 1.
        scores: [L, H, n], higher = keep.
        budget: entries kept, counting pins.
        sinks, recent: first and last entries that are kept whatever their score.
        allocator: how heads share the budget.
    """
    # On the CPU, where a backend is always there.
    keys, values, ranked = (
        x.detach().to("cpu", copy=True).unsqueeze(1).contiguous() for x in (k, v, scores.float())
    )
    result = kvp_ext.evict_(
        keys,
        values,
        torch.arange(k.shape[2]),
        allocator.budgets(ranked[:, 0], budget, sinks=sinks, recent=recent).unsqueeze(1),
        scores=ranked,
        sinks=sinks,
        recent=recent,
        return_indices=True,
    )
    left = int(result.lengths.max())
    assert result.kept is not None
    kept = result.kept[:, 0, :, :left].long()
    return Survivors(keys[:, 0, :, :left].clone(), values[:, 0, :, :left].clone(), kept)


def parse_budget(text: str) -> int | float:
    """A budget: "0.25" or "25%" of the context, or "256" entries.

    Raises:
        ValueError: neither a fraction in (0, 1] nor a whole number of at least 1.
    """
    try:
        if text.strip().isdecimal():
            budget: int | float = int(text)
        else:
            budget = float(text.strip().removesuffix("%"))
            budget = budget / 100 if text.strip().endswith("%") else budget
    except ValueError:
        budget = 0
    if not (budget >= 1 if isinstance(budget, int) else 0 < budget <= 1):
        raise ValueError(
            f"budget: got {text!r}, expected a fraction such as 0.25 or 25%, or a number of "
            "entries such as 256"
        )
    return budget


def entries(budget: int | float, length: int) -> int:
    """How many of `length` entries a budget keeps."""
    if isinstance(budget, int):
        return min(budget, length)
    return budget_from_ratio(length, keep_ratio=budget)
