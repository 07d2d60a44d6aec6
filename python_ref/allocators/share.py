"""Shares that were learned from traces: what each head should get, whatever the sequence."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .allocator import Allocator, Request

Table = Mapping[str, Sequence[Sequence[float]]]


def learned_shares(table: Table, name: str = "share") -> Allocator:
    """The allocator that a table makes: a row gets its head's share of the average.

    Between two kept ratios of the table shares are interpolated linearly in the ratio's logarithm;
    beyond its ends they are those at the end.

    Args:
        table: by kept ratio, in (0, 1] and as text, shares [L][H] of at least 0, 1 for the average.
            `python_ref.training.shares` learns such tables.
        name: of the allocator.

    Raises:
        ValueError: something else than such a table.
    """
    ratios, shares = _parsed(table)

    def share(request: Request) -> Tensor:
        layers, heads = request.low.shape
        if shares.shape[1:] != (layers, heads):
            raise ValueError(
                f"allocator: {name!r} is for [L, H] = {list(shares.shape[1:])}, expected "
                f"{[layers, heads]}"
            )
        held = int(request.high.sum())
        return shares_at(request.total / held if held else 1.0, ratios, shares)

    return Allocator(name, share, "", {})


def shares_at(ratio: float, ratios: Sequence[float], shares: Tensor) -> Tensor:
    """The shares [L, H] at a kept ratio, from those [R, L, H] at ascending ones."""
    above = bisect.bisect_left(ratios, ratio)
    if above == 0:
        return shares[0]
    if above == len(ratios):
        return shares[-1]
    low, high = ratios[above - 1], ratios[above]
    part = math.log(ratio / low) / math.log(high / low)
    return torch.lerp(shares[above - 1], shares[above], part)


def _parsed(table: Table) -> tuple[list[float], Tensor]:
    """Ascending ratios, and shares [R, L, H] in float64."""
    try:
        by_ratio = sorted((float(ratio), rows) for ratio, rows in table.items())
        shares = torch.tensor([rows for _, rows in by_ratio], dtype=torch.float64)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"shares: {error}; expected {{ratio: [L][H]}} of one size") from error
    ratios = [ratio for ratio, _ in by_ratio]
    if not ratios or not all(0 < ratio <= 1 for ratio in ratios) or len({*ratios}) < len(ratios):
        raise ValueError(f"shares: got the ratios {ratios}, expected different ones in (0, 1]")
    if shares.dim() != 3 or not bool((shares.isfinite() & (shares >= 0)).all()):
        raise ValueError(
            f"shares: got numbers of shape {list(shares.shape[1:])} at each ratio, expected finite "
            "[L][H] of at least 0"
        )
    return ratios, shares
