"""Oracle: the true future utility, a bound that no method can know before the future comes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..utility import utility
from .method import method


@method("oracle", decode="", compares="model")
def oracle(*, k: Tensor, future_q: Tensor, future_k: Tensor, block: int = 256) -> Tensor:
    """a_i of ``utility.utility``: the group attention that each entry will receive.

    Args:
        k, future_q, future_k: as ``method`` describes.
        block: queries per block of attention.
    """
    return utility(future_q, torch.cat([k, future_k], dim=1), block=block)
