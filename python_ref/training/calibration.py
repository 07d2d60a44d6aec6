"""Calibration: one scale for the scores of all heads.

A policy's scores rank the entries of a row, and nothing ties the scale of one head to another's.
Here each head gets an affine map, s' = slope s + intercept with a positive slope, fitted by least
squares to the log-utility of `objectives.log_utility`. What is minimised is the objective
`objectives.regression`, in closed form:

    sum over contexts of Var(e) + 0.1 (mean e)^2,   e = slope s + intercept - log(a + floor)

The map folds into the last layer, so a calibrated policy is a policy like any other and ranks each
row as before, up to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from python_ref.fold import FoldedPolicy, score
from python_ref.training.objectives import LEVEL_WEIGHT, log_utility
from python_ref.training.traces import Trace
from python_ref.training.validation import trace_scores

# Where a score tells nothing of the log-utility, or the opposite: it then spans this share of the
# log-utility's spread, since the ranking of a row must stay what it is.
LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class Context:
    """The entries of one split of a trace that an eviction chooses among, without its pins.

    Attributes:
        scores: fp32 [L, H, n].
        target: fp32 [L, H, n], the log-utility.
        weight: of the context; those of a trace add up to 1.
    """

    scores: Tensor
    target: Tensor
    weight: float


@dataclass(frozen=True)
class Fit:
    """How well scores tell the log-utility.

    Attributes:
        r2: share of the variance explained, over all entries of all heads and contexts; 0 where
            there is none.
        r2_within: of the variance within rows, likewise.
        rank_all: Spearman's correlation with the utility of all entries of a context together,
            whatever their head; mean over contexts.
        rank_within: the same within rows; mean over rows and contexts.
    """

    r2: float
    r2_within: float
    rank_all: float
    rank_within: float


@dataclass(frozen=True)
class Calibration:
    """A map of each head's scores, and what it changes.

    Attributes:
        slope, intercept: float64 [L, H].
        flat: heads whose slope the fit would have made smaller than `LEAST_SPREAD` allows.
        before, after: of the scores and of the mapped scores, on the contexts that were fitted.
    """

    slope: Tensor
    intercept: Tensor
    flat: int
    before: Fit
    after: Fit


def calibrate(
    policy: FoldedPolicy, traces: Sequence[Trace], *, sinks: int = 4, recent: int = 16
) -> tuple[FoldedPolicy, Calibration]:
    """The policy with scores on one scale.

    Args:
        policy: whose geometry is that of the traces.
        traces: at least one; documents count alike, however many splits they have.
        sinks, recent: what evictions pin: it does not compete, so it is not fitted.

    Raises:
        ValueError: no context has as many as two entries beside the pins.
    """
    contexts = [
        context
        for trace in traces
        for context in contexts_of(trace, scores_by(policy, trace), sinks, recent)
    ]
    if not contexts:
        raise ValueError(
            f"traces: got no context of at least {sinks + recent + 2} tokens, expected one to fit"
        )
    slope, intercept, flat = fit(contexts)
    mapped = [
        dataclasses.replace(c, scores=slope[..., None] * c.scores + intercept[..., None])
        for c in contexts
    ]
    result = Calibration(slope, intercept, flat, measure(contexts), measure(mapped))
    return rescaled(policy, slope, intercept), result


def scores_by(policy: FoldedPolicy, trace: Trace) -> Tensor:
    """Scores [L, H, N] of a trace's context."""
    return trace_scores(
        lambda k, v, pos, n: score(policy, k, v, pos), trace, max(trace.splits), slice(None), "cpu"
    )


def contexts_of(trace: Trace, scores: Tensor, sinks: int, recent: int) -> list[Context]:
    """The splits of a trace with scores [L, H, N], as far as they have two entries to compare."""
    weight = 1 / len(trace.splits)
    return [
        Context(
            scores[..., sinks : n - recent], log_utility(utility[..., sinks : n - recent]), weight
        )
        for n, utility in zip(trace.splits, trace.utilities, strict=True)
        if n >= sinks + recent + 2
    ]


def fit(contexts: Sequence[Context]) -> tuple[Tensor, Tensor, int]:
    """Slope and intercept [L, H] in float64, and how many heads are flat.

    With weighted means over contexts, the intercept that cancels the mean error leaves the slope

        (E Cov(s, y) + 0.1 Cov(E s, E y)) / (E Var(s) + 0.1 Var(E s))
    """
    weights = torch.tensor([c.weight for c in contexts], dtype=torch.float64)
    weights = weights / weights.sum()

    def mean(values: list[Tensor]) -> Tensor:
        return torch.einsum("c,clh->lh", weights, torch.stack(values))

    pairs = [(c.scores.double(), c.target.double()) for c in contexts]
    levels_s, levels_y = [s.mean(-1) for s, _ in pairs], [y.mean(-1) for _, y in pairs]
    level_s, level_y = mean(levels_s), mean(levels_y)

    def moment(within: Callable[[Tensor, Tensor], Tensor], between: list[Tensor]) -> Tensor:
        return mean([within(s, y) for s, y in pairs]) + LEVEL_WEIGHT * mean(between)

    off_s, off_y = [x - level_s for x in levels_s], [x - level_y for x in levels_y]
    covariance = moment(_covariance, [a * b for a, b in zip(off_s, off_y, strict=True)])
    spread_s = moment(lambda s, y: _covariance(s, s), [a * a for a in off_s]).sqrt()
    spread_y = moment(lambda s, y: _covariance(y, y), [a * a for a in off_y]).sqrt()
    constant = spread_s == 0
    spread_s = spread_s.masked_fill(constant, 1.0)
    slope = covariance / spread_s.square()
    # A target without any spread leaves no scale to fit: then the score's own will do.
    least = torch.where(spread_y > 0, LEAST_SPREAD * spread_y / spread_s, LEAST_SPREAD)
    flat = int((slope < least).sum())
    slope = torch.maximum(slope, least).masked_fill(constant, 1.0)
    return slope, level_y - slope * level_s, flat


def _covariance(x: Tensor, y: Tensor) -> Tensor:
    x, y = (a - a.mean(dim=-1, keepdim=True) for a in (x, y))
    return (x * y).mean(dim=-1)


def measure(contexts: Sequence[Context]) -> Fit:
    """How well the scores of contexts tell the log-utility; every document counts alike."""
    weights = sum(c.weight for c in contexts)

    def mean(of: Callable[[Tensor, Tensor], Tensor]) -> float:
        values = (c.weight * of(c.scores.double(), c.target.double()).item() for c in contexts)
        return sum(values) / weights

    level = mean(lambda s, y: y.mean())
    error = mean(lambda s, y: (s - y).square().mean())
    spread = mean(lambda s, y: (y - level).square().mean())
    error_within = mean(lambda s, y: _covariance(s - y, s - y).mean())
    spread_within = mean(lambda s, y: _covariance(y, y).mean())
    return Fit(
        r2=1 - error / spread if spread else 0.0,
        r2_within=1 - error_within / spread_within if spread_within else 0.0,
        rank_all=mean(lambda s, y: _spearman(s.flatten(), y.flatten())),
        rank_within=mean(lambda s, y: _row_spearman(s.flatten(0, 1), y.flatten(0, 1)).mean()),
    )


def _row_spearman(x: Tensor, y: Tensor) -> Tensor:
    """Rank correlation of the rows of x [rows, n] and y [rows, n], [rows]."""
    return torch.stack([_spearman(a, b) for a, b in zip(x, y, strict=True)])


def _spearman(x: Tensor, y: Tensor) -> Tensor:
    """Rank correlation of x [n] and y [n], ties at their mean rank; 0 if one is constant."""
    a, b = _mean_ranks(x), _mean_ranks(y)
    spread = (_covariance(a, a) * _covariance(b, b)).sqrt()
    return _covariance(a, b) / spread if spread > 0 else torch.zeros_like(spread)


def _mean_ranks(x: Tensor) -> Tensor:
    _, place, counts = x.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[place]


def rescaled(policy: FoldedPolicy, slope: Tensor, intercept: Tensor) -> FoldedPolicy:
    """The policy that scores slope s + intercept, both [L, H], where `policy` scores s."""
    weight, bias = (policy.tensors[f"output.{name}"] for name in ("weight", "bias"))
    changed = {
        "output.weight": slope[..., None] * weight.double(),
        "output.bias": slope[..., None] * bias.double() + intercept[..., None],
    }
    tensors = {name: changed.get(name, x).to(x.dtype) for name, x in policy.tensors.items()}
    return dataclasses.replace(policy, tensors=tensors)
