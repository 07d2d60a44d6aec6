"""Confidence intervals: Wilson's for proportions, and the bootstrap over documents."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

RESAMPLES = 2000


def wilson_interval(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """95% confidence interval of a proportion of independent trials (Wilson, 1927)."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return (centre - spread) / (1 + z * z / trials), (centre + spread) / (1 + z * z / trials)


def bootstrap_interval(
    statistic: Callable[[Tensor], Tensor], documents: int, *, seed: int, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """95% percentile interval of a statistic when documents are drawn anew (Efron, 1979).

    Whole documents are drawn, with replacement, so questions about one document stay together. A
    difference of two methods on the same draw is the paired comparison.

    Args:
        statistic: of indices int64 [resamples, documents], the values [resamples].
        documents: how many there are.
        seed: of the draws.
        resamples: how many draws.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(documents, (resamples, documents), generator=generator)
    quantiles = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.quantile(statistic(drawn).double(), quantiles).tolist()
    return low, high
