"""What a ranking loses of the attention to come, before any model is asked (arXiv 2602.10238).

The cost over all budgets is `python_ref.utility.relative_cost`; here is what one budget loses, over
what the ideal choice without pins loses: with pins even an oracle is above 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from python_ref.selection import ranking
from python_ref.utility import WORST_NORMALISED_COST


def relative_loss(utility: Tensor, kept: Tensor) -> float:
    """Future attention lost over the least that equal rows of as many entries lose, at most 200.

        sum_{rows} sum_{i not kept} a_i / sum_{rows} sum_{r > budget} a_{sigma*_r}

    Summed over rows before dividing: a row in which almost nothing can be lost says little. Rows
    that share their budgets unequally are measured against equal ones, so that ways to share can be
    compared; what they lose may then be less than 1.

    Args:
        utility: a [..., n].
        kept: the slots that are kept, integers [..., longest row], then -1.
    """
    exact = utility.double()
    rows = exact.shape[:-1].numel()
    budget = int((kept >= 0).sum()) // rows
    least = exact.sort(dim=-1, descending=True).values[..., budget:].sum()
    # One more slot takes what stands for nothing.
    slots = torch.where(kept >= 0, kept.long(), exact.shape[-1])
    lost = torch.nn.functional.pad(exact, (0, 1)).scatter(-1, slots, 0.0).sum()
    if least == 0:
        return 1.0 if lost == 0 else -WORST_NORMALISED_COST
    return min(float(lost / least), -WORST_NORMALISED_COST)


def best_by_score(scores: Tensor, budgets: Tensor) -> Tensor:
    """The slots that scores [..., n] alone would keep, without pins.

    Args:
        budgets: integers [...].

    Returns:
        [..., largest budget], best first, then -1.
    """
    valid = torch.ones_like(scores, dtype=torch.bool)
    order = ranking(scores, valid)[..., : int(budgets.max())]
    place = torch.arange(order.shape[-1], device=order.device)
    return order.masked_fill(place >= budgets[..., None], -1)
