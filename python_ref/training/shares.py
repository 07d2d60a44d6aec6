"""What share of a budget each head should get, learned from traces and a policy's ranking.

A head that keeps the best x n of n entries retains some of the attention to come; the mean over
documents is a curve in x. The sum of all heads' curves under a budget is largest, if curves are
concave, where the next entry is worth the same everywhere: steps are taken greedily by what they
add. A curve that is not concave is replaced by the least concave one above it.

The attention of a head is a share of what its queries look at, so heads can be compared; whether
losing it costs them the same is not asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from python_ref.fold import FoldedPolicy
from python_ref.selection import pinned_entries, ranking
from python_ref.training.calibration import scores_by
from python_ref.training.traces import Trace

RATIOS = (0.5, 0.25, 0.125, 0.0625)
STEPS = 256


def learn_shares(
    policy: FoldedPolicy,
    traces: Sequence[Trace],
    *,
    sinks: int = 4,
    recent: int = 16,
    ratios: Sequence[float] = RATIOS,
) -> dict[str, list[list[float]]]:
    """The table that `python_ref.allocators.learned_shares` takes.

    Args:
        policy: that ranks; of the geometry of the traces.
        traces: at least one; documents count alike.
        sinks, recent: what evictions pin: it is the first that a row keeps.
        ratios: kept on average, in (0, 1].
    """
    total = torch.zeros(policy.layers, policy.kv_heads, STEPS + 1, dtype=torch.float64)
    for trace in traces:
        scores = scores_by(policy, trace)
        for n, utility in zip(trace.splits, trace.utilities, strict=True):
            total += retained(scores[..., :n], utility, sinks, recent) / len(trace.splits)
    gains = concave(total / len(traces)).diff(dim=-1)
    return {str(ratio): best_shares(gains, ratio).tolist() for ratio in ratios}


def retained(scores: Tensor, utility: Tensor, sinks: int, recent: int) -> Tensor:
    """Utility [..., STEPS + 1] of the best 0, 1 / STEPS, ... of the entries, pins first.

    Args:
        scores, utility: [..., n].
    """
    valid = torch.ones_like(scores, dtype=torch.bool)
    n = scores.shape[-1]
    budget = torch.full(scores.shape[:-1], n)
    order = ranking(scores, valid, pinned_entries(valid, budget, sinks, recent))
    kept = F.pad(utility.double().gather(-1, order).cumsum(-1), (1, 0))
    place = torch.arange(STEPS + 1, dtype=torch.float64) * (n / STEPS)
    low = place.floor().long().clamp(max=n)
    high = (low + 1).clamp(max=n)
    return torch.lerp(kept[..., low], kept[..., high], place - low)


def concave(curves: Tensor) -> Tensor:
    """The least concave curves above `curves` [L, H, S + 1]."""
    hulls = [_hull(curve) for curve in curves.flatten(0, 1).tolist()]
    return torch.tensor(hulls, dtype=torch.float64).view_as(curves)


def _hull(curve: list[float]) -> list[float]:
    corners: list[int] = []
    for i, value in enumerate(curve):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (curve[b] - curve[a]) * (i - a) > (value - curve[a]) * (b - a):
                break
            corners.pop()
        corners.append(i)
    hull = curve[:]
    for a, b in itertools.pairwise(corners):
        for i in range(a + 1, b):
            hull[i] = curve[a] + (curve[b] - curve[a]) * (i - a) / (b - a)
    return hull


def best_shares(gains: Tensor, ratio: float) -> Tensor:
    """Shares [L, H], mean 1, of the steps that add most.

    Args:
        gains: [L, H, S], what each further step adds, descending in each row.
        ratio: of all steps that are taken.
    """
    steps = round(ratio * gains.numel())
    # Stable: of equal gains those of the lower layer, head and step.
    best = gains.flatten().argsort(descending=True, stable=True)[:steps]
    taken = torch.zeros(gains.numel(), dtype=torch.float64)
    taken[best] = 1
    taken = taken.view_as(gains).sum(dim=-1)
    return (taken / taken.mean()).mul(1e3).round().div(1e3)
