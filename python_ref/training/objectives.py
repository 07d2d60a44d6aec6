"""Objectives: losses of a policy's scores, given the utilities of the tokens.

Scores s and utilities a are [..., n]: the tokens of one item, a sample of the context cached at one
split point, seen by one head. A loss is [...], one value per item and head, and the caller takes
means. So every head keeps a gradient of its own, whatever the number of heads.

A sampled token may stand for w_i tokens of its context (``Batch.weight``; 1 by default). Then sums
over the context become sums weighted by w, and the w_i copies of a token tie with one another.

Source: Learning to Evict from Key-Value Cache (arXiv 2602.10238), section 3 and its ablation of
objectives; the closed form of the expected cost is ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from python_ref.utility import WORST_NORMALISED_COST


@dataclass(frozen=True)
class Batch:
    """What a loss may ask of the batch beyond scores and utilities.

    Attributes:
        weight: w [..., n], broadcast to the scores; None counts every token once.
        gumbel: makes standard Gumbel noise [count, *scores.shape] from a count.
        every_item: gathers values [..., items] of the items of all processes along the last
            dimension.
    """

    weight: Tensor | None = None
    gumbel: Callable[[int], Tensor] | None = None
    every_item: Callable[[Tensor], Tensor] = lambda values: values

    def weight_like(self, scores: Tensor) -> Tensor:
        """The weights w, expanded to the scores."""
        if self.weight is None:
            return torch.ones_like(scores)
        return self.weight.to(scores.dtype).expand_as(scores)

    def noise(self, count: int, scores: Tensor) -> Tensor:
        """Standard Gumbel noise [count, *scores.shape]."""
        if self.gumbel is not None:
            return self.gumbel(count)
        return -torch.empty(count, *scores.shape, dtype=scores.dtype).exponential_().log()


Loss = Callable[..., Tensor]
ALONE = Batch()


@dataclass(frozen=True)
class Objective:
    """A loss, and what suits it.

    Attributes:
        loss: loss(scores, utility, batch, **options) -> [...].
        items, tokens, learning_rate, marked_weight: defaults of a training phase. Losses over
            pairs or rankings want many tokens of one context at once; the regressions want many
            contexts, and the tokens of a fact more often than they occur.
        target: of a regression, the score that it asks for, given a utility. The others see
            differences of scores only.
    """

    loss: Loss
    items: int
    tokens: int
    learning_rate: float
    marked_weight: float = 1.0
    target: Callable[[Tensor], Tensor] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword options of the loss and their defaults."""
        parameters = inspect.signature(self.loss).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def objectives() -> dict[str, Objective]:
    """Every objective by name."""
    return {
        "regression": Objective(regression, 8, 64, 3e-3, 4.0, log_utility),
        "regression_absolute": Objective(regression_absolute, 8, 64, 3e-3, 4.0, log_utility),
        "regression_utility": Objective(regression_utility, 8, 64, 3e-3, 4.0, scaled_utility),
        "exact": Objective(expected_cost, 1, 384, 5e-4),
        "rloo": Objective(rloo, 1, 384, 5e-4),
        "rloo_batch": Objective(rloo_batch, 8, 64, 5e-4),
        "pairwise": Objective(pairwise, 1, 384, 5e-4),
        "listwise": Objective(listwise, 1, 384, 5e-4),
        "listmle": Objective(listmle, 1, 384, 5e-4),
        "softsort": Objective(softsort, 1, 384, 5e-4),
    }


# Regression on the utility

FLOOR = 3e-5
LEVEL_WEIGHT = 0.1


def log_utility(utility: Tensor, floor: float = FLOOR) -> Tensor:
    """log(a + floor). The floor is the attention below which differences stop mattering."""
    return torch.log(utility + floor)


def regression(
    scores: Tensor, utility: Tensor, batch: Batch = ALONE, *, floor: float = FLOOR
) -> Tensor:
    """Squared error against the log-utility, up to a constant of the context.

        e_i = s_i - log(a_i + floor),   Var(e) + 0.1 (mean e)^2

    Only differences within a context decide what is kept, so the variance of the error counts
    fully and its mean little, enough to keep the scores of different heads on one scale. This is
    what lets a score that depends on the position alone express recency: exp(-c age) is
    exp(c pos) up to a factor which all tokens of the context share, and which would otherwise be
    noise to the regression.
    """
    error = scores - log_utility(utility, floor)
    weight = batch.weight_like(scores)
    level = _mean(error, weight)
    return _mean((error - level[..., None]).square(), weight) + LEVEL_WEIGHT * level.square()


def regression_absolute(
    scores: Tensor, utility: Tensor, batch: Batch = ALONE, *, floor: float = FLOOR
) -> Tensor:
    """Squared error against the log-utility: mean_i (s_i - log(a_i + floor))^2."""
    error = scores - log_utility(utility, floor)
    return _mean(error.square(), batch.weight_like(scores))


def scaled_utility(utility: Tensor) -> Tensor:
    """Utility in thousandths: of order 1 for the mean attention among a thousand tokens."""
    return 1000 * utility


def regression_utility(scores: Tensor, utility: Tensor, batch: Batch = ALONE) -> Tensor:
    """Squared error against the plain utility in thousandths: mean_i (s_i - 1000 a_i)^2.

    Dominated by the few tokens that receive most of the attention.
    """
    error = scores - scaled_utility(utility)
    return _mean(error.square(), batch.weight_like(scores))


def _mean(x: Tensor, weight: Tensor) -> Tensor:
    """sum_i w_i x_i / sum_i w_i over the last dimension."""
    return (weight * x).sum(dim=-1) / weight.sum(dim=-1)


# The cost of a ranking and its expectation under Plackett-Luce


def ranking_cost(order: Tensor, utility: Tensor, weight: Tensor) -> Tensor:
    """C(sigma) = sum_r a_{sigma_r} r, where copies of a token have their mean rank.

    order sigma, utility and weight are [..., n], best first; the cost is [...]. With weights,
    r becomes the weight that stands before, plus (w + 1) / 2, and the sum is weighted by w.
    """
    w = weight.gather(-1, order)
    rank = w.cumsum(dim=-1) - (w - 1) / 2
    return (w * utility.gather(-1, order) * rank).sum(dim=-1)


def ideal_cost(utility: Tensor, weight: Tensor) -> Tensor:
    """C(sigma*) [...], with a tiny positive value where no token has any utility."""
    order = utility.argsort(dim=-1, descending=True)
    return ranking_cost(order, utility, weight).clamp(min=1e-12)


def expected_cost(
    scores: Tensor, utility: Tensor, batch: Batch = ALONE, *, others: int = 0
) -> Tensor:
    """Expected cost of a Plackett-Luce ranking, exactly, over the ideal cost: 1 is perfect.

    Under Plackett-Luce P(j before i) = sigmoid(s_j - s_i), so

        E[C] = sum_i a_i (1 + sum_{j != i} sigmoid(s_j - s_i)),

    the objective that REINFORCE estimates by sampling rankings, without its variance. It costs
    O(n^2), or O(n m) with ``others`` = m: then the inner sum runs over m < n tokens j drawn
    without replacement, times n / m, which leaves value and gradient unbiased.
    """
    weight = batch.weight_like(scores)
    mass = weight * utility
    n = scores.shape[-1]
    if 0 < others < n:
        drawn = batch.noise(1, scores)[0].topk(others, dim=-1).indices
        s_j, w_j, mass_j = (x.gather(-1, drawn) for x in (scores, weight, mass))
    else:
        s_j, w_j, mass_j = scores, weight, mass
    pairs: Tensor = PairSum.apply(scores, mass, s_j, w_j)  # type: ignore[no-untyped-call]
    with_itself = 0.5 * (mass_j * w_j).sum(dim=-1)
    before = (pairs - with_itself) * (n / s_j.shape[-1])
    own = (mass * (weight + 1) / 2).sum(dim=-1)
    return (own + before) / ideal_cost(utility, weight)


class PairSum(torch.autograd.Function):
    """sum_i sum_j m_i w_j sigmoid(s_j - s_i), differentiable in both scores.

    The gradient needs sigmoid' = sigmoid (1 - sigmoid) of every pair, so it is taken along with
    the value, a few rows at a time: pairs stay in the processor's cache and are never stored.
    """

    BLOCK = 2**18  # pairs

    @staticmethod
    def forward(ctx: Any, s_i: Tensor, mass: Tensor, s_j: Tensor, weight: Tensor) -> Tensor:
        """s_i, mass are [..., n], s_j, weight are [..., m]; the sum is [...]."""
        shape, m = s_i.shape, s_j.shape[-1]
        s_i, mass = (x.reshape(-1, shape[-1]) for x in (s_i, mass))
        s_j, weight = (x.reshape(-1, m) for x in (s_j, weight))
        total = s_i.new_empty(len(s_i))
        slope_i, slope_j = torch.empty_like(s_i), torch.empty_like(s_j)
        rows = max(1, PairSum.BLOCK // (shape[-1] * m))
        for start in range(0, len(s_i), rows):
            block = slice(start, start + rows)
            w, a = weight[block, :, None], mass[block, None, :]
            before = s_j[block, None, :] - s_i[block, :, None]
            before.sigmoid_()
            total[block] = (a @ (before @ w)).flatten()
            slope = torch.addcmul(before, before, before, value=-1, out=before)
            slope_i[block] = -mass[block] * (slope @ w).squeeze(-1)
            slope_j[block] = weight[block] * (a @ slope).squeeze(-2)
        ctx.save_for_backward(slope_i.reshape(shape), slope_j.reshape(*shape[:-1], m))
        return total.reshape(shape[:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of s_i and s_j."""
        slope_i, slope_j = ctx.saved_tensors
        return gradient[..., None] * slope_i, None, gradient[..., None] * slope_j, None


def plackett_luce(scores: Tensor, order: Tensor) -> Tensor:
    """log pi(sigma), rank by rank: s_{sigma_r} - logsumexp_{r' >= r} s_{sigma_r'}, [..., n]."""
    ordered = scores.gather(-1, order)
    return ordered - ordered.flip(-1).logcumsumexp(dim=-1).flip(-1)


def rloo(
    scores: Tensor,
    utility: Tensor,
    batch: Batch = ALONE,
    *,
    rankings: int = 8,
    normalise: bool = True,
) -> Tensor:
    """REINFORCE with a leave-one-out baseline over K rankings of the same item.

        sigma_k ~ PL(s) by Gumbel-sort,   R_k = max(-C(sigma_k) / C(sigma*), -200)
        A_k = R_k - mean_{k' != k} R_k',  normalised by mean and std over rankings and items
                                          and clamped to +-2
        loss = -mean_k A_k mean_r log pi_r(sigma_k)

    ``normalise=False`` leaves out normalisation and clamp; then the expected gradient is that of
    ``expected_cost`` / n, wherever the clamp of R does not bind. Items are the last dimension
    before n; scores [n] are one item.
    """
    if rankings < 2:
        raise ValueError(f"rankings: got {rankings}, expected at least 2: each needs others")
    reward, chance = _sampled_rankings(scores, utility, batch, rankings)
    others = (reward.sum(dim=0) - reward) / (rankings - 1)
    return _reinforce(reward - others, chance, batch, normalise)


def rloo_batch(
    scores: Tensor, utility: Tensor, batch: Batch = ALONE, *, normalise: bool = True
) -> Tensor:
    """The released form of ``rloo``: one ranking per item, the batch's other items as baseline.

    Items are the last dimension before n, and there must be at least two.
    """
    reward, chance = _sampled_rankings(scores, utility, batch, 1)
    every = batch.every_item(reward)
    items = every.shape[-1] if every.dim() > 1 else 1
    if items < 2:
        raise ValueError("items: got 1 in a batch, expected at least 2: each needs others")
    others = (every.sum(dim=-1, keepdim=True) - reward) / (items - 1)
    return _reinforce(reward - others, chance, batch, normalise)


def _sampled_rankings(
    scores: Tensor, utility: Tensor, batch: Batch, count: int
) -> tuple[Tensor, Tensor]:
    """Rewards and mean log-probabilities [count, ...] of Plackett-Luce rankings."""
    weight = batch.weight_like(scores)
    with torch.no_grad():
        order = (scores + batch.noise(count, scores)).argsort(dim=-1, descending=True)
        many = (count, *scores.shape)
        cost = ranking_cost(order, utility.expand(many), weight.expand(many))
        reward = (-cost / ideal_cost(utility, weight)).clamp(min=WORST_NORMALISED_COST)
    chance = plackett_luce(scores.expand(count, *scores.shape), order)
    return reward, chance.mean(dim=-1)


def _reinforce(advantage: Tensor, chance: Tensor, batch: Batch, normalise: bool) -> Tensor:
    """-mean_k A_k log pi_k, [...]."""
    if normalise:
        pooled = (0, -1) if advantage.dim() > 1 else (0,)
        every = batch.every_item(advantage) if advantage.dim() > 1 else advantage
        mean = every.mean(dim=pooled, keepdim=True)
        std = every.std(dim=pooled, keepdim=True, correction=0)
        # Rankings that cost the same up to rounding teach nothing.
        advantage = ((advantage - mean) / (std + 1e-6)).clamp(-2, 2)
    return -(advantage * chance).mean(dim=0)


# Learning to rank


def pairwise(scores: Tensor, utility: Tensor, batch: Batch = ALONE) -> Tensor:
    """RankNet's loss (Burges et al., 2005), each pair weighted by what its order is worth.

        sum_{a_i > a_j} (a_i - a_j) log(1 + exp(s_j - s_i)) / sum_{a_i > a_j} (a_i - a_j)

    With the sigmoid in place of log(1 + exp) this would be ``expected_cost`` up to a constant.
    """
    weight = batch.weight_like(scores)
    worth = (utility[..., :, None] - utility[..., None, :]).clamp(min=0)
    worth = worth * weight[..., :, None] * weight[..., None, :]
    loss = F.softplus(scores[..., None, :] - scores[..., :, None])
    return (worth * loss).sum(dim=(-2, -1)) / worth.sum(dim=(-2, -1)).clamp(min=1e-12)


def listwise(scores: Tensor, utility: Tensor, batch: Batch = ALONE) -> Tensor:
    """Softmax cross-entropy against the normalised utility (ListNet, Cao et al., 2007).

    -sum_i p_i log softmax(s)_i,   p = a / sum a
    """
    weight = batch.weight_like(scores)
    mass = weight * utility
    share = mass / mass.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    chance = scores - torch.logsumexp(scores + weight.log(), dim=-1, keepdim=True)
    return -(share * chance).sum(dim=-1)


def listmle(scores: Tensor, utility: Tensor, batch: Batch = ALONE) -> Tensor:
    """ListMLE (Xia et al., 2008): -log pi of the ideal ranking, a mean over ranks."""
    weight = batch.weight_like(scores)
    order = utility.argsort(dim=-1, descending=True)
    w = weight.gather(-1, order)
    ordered = scores.gather(-1, order)
    remaining = (ordered + w.log()).flip(-1).logcumsumexp(dim=-1).flip(-1)
    return -_mean(ordered - remaining, w)


def softsort(
    scores: Tensor, utility: Tensor, batch: Batch = ALONE, *, temperature: float = 1.0
) -> Tensor:
    """Cost of the soft ranks of SoftSort (Prillo and Eisenschlos, 2020), over the ideal cost.

        P_rj = softmax_j(-|s_(r) - s_j| / temperature),   rank_j = sum_r r P_rj / sum_r P_rj
        sum_j a_j rank_j / C(sigma*)

    Row r of P is a soft choice of the token with the r-th best score s_(r). Each token's ranks are
    averaged, because rows alone do not make P a permutation: sum_r r (P a)_r can be lowered by
    tokens that no row chooses, and does not lead to the ideal ranking.
    """
    weight = batch.weight_like(scores)
    order = scores.argsort(dim=-1, descending=True)
    w = weight.gather(-1, order)
    rank = w.cumsum(dim=-1) - (w - 1) / 2
    distance = (scores.gather(-1, order)[..., :, None] - scores[..., None, :]).abs()
    choice = w[..., :, None] * torch.softmax(-distance / temperature, dim=-1)
    soft_rank = torch.einsum("...rj,...r->...j", choice, rank) / choice.sum(dim=-2)
    return (weight * utility * soft_rank).sum(dim=-1) / ideal_cost(utility, weight)
