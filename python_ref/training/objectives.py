"""Losses of a policy's scores, given the utilities of the tokens (arXiv 2602.10238, section 3).

Shapes: scores s and utilities a are [..., n], the tokens of one context or a sample of them.
Losses are means over heads, so that every head learns at the same rate whatever their number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from python_ref.utility import optimal_cost


def log_utility(utility: Tensor, floor: float) -> Tensor:
    """log(a + floor). The floor is the attention below which differences stop mattering."""
    return torch.log(utility + floor)


LEVEL_WEIGHT = 0.1


def log_utility_regression(scores: Tensor, utility: Tensor, floor: float) -> Tensor:
    """Squared error of the scores against the log-utility, up to a constant of the context.

    Only differences within a context decide what is kept, so the variance of the error counts
    fully and its mean little, enough to keep the scores of different heads on one scale. This is
    what lets a score that depends on the position alone express recency: exp(-c age) is
    exp(c pos) up to a factor which all tokens of the context share, and which would otherwise be
    noise to the regression.
    """
    error = scores - log_utility(utility, floor)
    level = error.mean(dim=-1)
    return error.var(dim=-1, correction=0).mean() + LEVEL_WEIGHT * level.square().mean()


def expected_cost(scores: Tensor, utility: Tensor) -> Tensor:
    """Expected cost of a Plackett-Luce ranking, exactly, over the ideal cost: 1 is perfect, [L, H].

    Under Plackett-Luce P(j before i) = sigmoid(s_j - s_i), so

        E[C] = sum_i a_i (1 + sum_{j != i} sigmoid(s_j - s_i)),

    the objective that REINFORCE estimates by sampling rankings, without its variance.
    """
    before = torch.sigmoid(scores[..., None, :] - scores[..., :, None])
    rank = before.sum(dim=-1) + 0.5  # j = i contributes sigmoid(0)
    optimal = optimal_cost(utility).clamp(min=1e-12).to(utility.dtype)
    return (utility * rank).sum(dim=-1) / optimal


def exact_plackett_luce(scores: Tensor, utility: Tensor) -> Tensor:
    """Mean over heads of the expected cost, each relative to the ideal."""
    return expected_cost(scores, utility).mean()
