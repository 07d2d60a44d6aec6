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
    """Future attention lost over the least that any choice of as many entries loses, at most 200.

        sum_{rows} sum_{i not kept} a_i / sum_{rows} sum_{r > budget} a_{sigma*_r}

    Summed over rows before dividing: a row in which almost nothing can be lost says little.

    Args:
        utility: a [..., n].
        kept: the slots that are kept, integers [..., budget].
    """
    exact = utility.double()
    least = exact.sort(dim=-1, descending=True).values[..., kept.shape[-1] :].sum()
    lost = exact.scatter(-1, kept.long(), 0.0).sum()
    if least == 0:
        return 1.0 if lost == 0 else -WORST_NORMALISED_COST
    return min(float(lost / least), -WORST_NORMALISED_COST)


def best_by_score(scores: Tensor, budget: int) -> Tensor:
    """The slots [..., budget] that scores [..., n] alone would keep, without pins."""
    valid = torch.ones_like(scores, dtype=torch.bool)
    return ranking(scores, valid)[..., :budget]
