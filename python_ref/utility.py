"""What a ranking of the cache costs (arXiv 2602.10238): utility, cost and normalised cost."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import group_attention_blocks
from .selection import pinned_entries, ranking

WORST_NORMALISED_COST = -200.0


def utility(q: Tensor, k: Tensor, *, valid: Tensor | None = None, block: int = 256) -> Tensor:
    """Utility of each cached entry: the attention that it receives from the future queries.

        a_i = sum_{t > n} A[t, i],   A[t, i] = max over the group's query heads

    Args:
        q: [..., H G, T - n, D] post-RoPE queries of the tokens after the first n.
        k: [..., H, T, D] post-RoPE keys of the whole sequence: future queries attend to future
            keys too.
        valid: bool [..., T] or [..., H, T]; by default there is no padding.
        block: queries per block.

    Returns:
        [..., H, n] in float32 (float64 for float64 inputs); 0 at padding.
    """
    n = k.shape[-2] - q.shape[-2]
    if n < 0:
        raise ValueError(f"q: got {q.shape[-2]} queries, expected at most {k.shape[-2]} as in k")
    total = k.new_zeros((*k.shape[:-2], n), dtype=torch.promote_types(k.dtype, torch.float32))
    for _, weights in group_attention_blocks(q, k, valid=valid, block=block):
        total += weights[..., :n].sum(dim=-2)
    return total


def cost(utilities: Tensor, order: Tensor) -> Tensor:
    """Cost of a ranking: the future attention lost, summed over all budgets.

        C(sigma) = sum_r r a_{sigma_r},   r = 1 .. n

    An entry of rank r is lost at the r budgets 0 .. r - 1.

    Args:
        utilities: a [..., n].
        order: sigma [..., n], entries best first.

    Returns:
        [...] float64.
    """
    rank = torch.arange(1, order.shape[-1] + 1, dtype=torch.float64, device=order.device)
    return torch.einsum("r,...r->...", rank, utilities.double().gather(-1, order))


def optimal_cost(utilities: Tensor) -> Tensor:
    """C(sigma*) [...] of the ideal ranking, by utility descending."""
    return cost(utilities, utilities.argsort(dim=-1, descending=True, stable=True))


def normalised_cost(costs: Tensor, optimal: Tensor) -> Tensor:
    """R = -C(sigma) / C(sigma*): -1 is perfect, and nothing is below -200.

    Where no entry has any utility every ranking is perfect.
    """
    ratio = -costs / optimal.masked_fill(optimal == 0, 1.0)
    return ratio.masked_fill(optimal == 0, -1.0).clamp(min=WORST_NORMALISED_COST)


def cost_of_scores(scores: Tensor, utilities: Tensor, valid: Tensor | None = None) -> Tensor:
    """Cost [...] of ranking entries by scores [..., n] (see ``selection.ranking``).

    Args:
        scores, utilities: [..., n].
        valid: bool [..., n]; padding is ranked last and must have utility 0.
    """
    if valid is None:
        valid = torch.ones_like(scores, dtype=torch.bool)
    return cost(utilities, ranking(scores, valid))


def relative_cost(scores: Tensor, utilities: Tensor, sinks: int = 0, recent: int = 0) -> Tensor:
    """C(sigma) / C(sigma*) of ranking by scores, [...] float64: 1 is perfect, at most 200.

    Both rankings begin with the pins, the first ``sinks`` and the last ``recent`` entries; sigma
    goes on by score and sigma* by utility. So with pins it is the share of the cost that a score
    decides.

    Args:
        scores, utilities: [..., n], without padding.
    """
    valid = torch.ones_like(utilities, dtype=torch.bool)
    budget = torch.full(utilities.shape[:-1], utilities.shape[-1], device=utilities.device)
    pinned = pinned_entries(valid, budget, sinks, recent)
    costs, ideal = (cost(utilities, ranking(x, valid, pinned)) for x in (scores, utilities))
    return -normalised_cost(costs, ideal)
