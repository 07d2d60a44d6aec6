"""Budgets: how many entries a row keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

Budget = int | Sequence[int] | Tensor


def budget_from_ratio(
    length: int, *, keep_ratio: float | None = None, compression_ratio: float | None = None
) -> int:
    """Entries kept of ``length``: the fraction ``keep_ratio`` of it, or all but
    ``compression_ratio`` of it, rounded half up, at least one.

    The ratio is taken as the decimal number it prints as, so that 0.9 is nine tenths:
    ``budget_from_ratio(1000, compression_ratio=0.9) == 100``, whereas in floating point
    ``int(1000 * (1 - 0.9)) == 99``.
    """
    if (keep_ratio is None) == (compression_ratio is None):
        raise ValueError(
            f"keep_ratio, compression_ratio: got {keep_ratio} and {compression_ratio}, "
            "expected exactly one of them"
        )
    name = "keep_ratio" if compression_ratio is None else "compression_ratio"
    value = keep_ratio if compression_ratio is None else compression_ratio
    assert value is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: got {value!r}, expected a number from 0 to 1")
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(f"length: got {length!r}, expected an integer")
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise ValueError(f"{name}: got {value}, expected a number from 0 to 1")
    if length < 0:
        raise ValueError(f"length: got {length}, expected at least 0")
    ratio = Fraction(str(value))
    kept = length * (ratio if compression_ratio is None else 1 - ratio)
    return max(1, math.floor(kept + Fraction(1, 2)))


def as_counts(budget: Budget, device: torch.device | None = None) -> Tensor:
    """A budget as an int64 tensor, checked to be integers (not bools) of at least 0.

    Raises:
        TypeError: not integers.
        ValueError: negative.
    """
    if isinstance(budget, bool):
        raise TypeError(f"budget: got {budget!r}, expected an integer")
    counts = torch.as_tensor(budget, device=device)
    if counts.dtype == torch.bool or counts.is_floating_point() or counts.is_complex():
        raise TypeError(f"budget: got {budget!r}, expected integers")
    if bool((counts < 0).any()):
        raise ValueError(f"budget: got {int(counts.min())}, expected at least 0")
    return counts.to(torch.int64)


def expand_budget(
    budget: Budget, layers: int, batch: int, heads: int, device: torch.device | None = None
) -> Tensor:
    """Per-row budget [L, B, H] int64 from an int, or integers of shape [L], [L, H] or [L, B, H]."""
    counts = as_counts(budget, device)
    if tuple(counts.shape) not in ((), (layers,), (layers, heads), (layers, batch, heads)):
        raise ValueError(
            f"budget: got shape {list(counts.shape)}, expected an int, [L], [L, H] or [L, B, H] "
            f"with [L, B, H] = {[layers, batch, heads]}"
        )
    if counts.dim() == 1:
        counts = counts[:, None, None]
    elif counts.dim() == 2:
        counts = counts[:, None, :]
    return counts.expand(layers, batch, heads)


def expand_total(budget: Budget, batch: int, device: torch.device | None = None) -> Tensor:
    """Model-wide total per sequence [B] int64 from an int or integers of shape [B]."""
    totals = as_counts(budget, device)
    if tuple(totals.shape) not in ((), (batch,)):
        raise ValueError(
            f"budget: got shape {list(totals.shape)}, expected an int or [B] = [{batch}] for a "
            "model-wide total"
        )
    return totals.expand(batch)
