"""H2O: Heavy-Hitter Oracle (arXiv 2306.14048), as observed attention after prefill."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention import attention_received
from .method import method


@method("h2o", compares="model")
def h2o(*, k: Tensor, q: Tensor, block: int = 256) -> Tensor:
    """Attention received, per query that could see the entry; mean over the group.

        s_i = sum_t A[t, i] / |{t : t >= i}|

    The division takes away the advantage that old entries have by being seen more often.

    Args:
        k, q: as ``method`` describes; usually q holds the queries of all entries.
        block: queries per block of attention.
    """
    received = attention_received(q, k, block=block).mean(dim=1)
    n = k.shape[1]
    slot = torch.arange(n, device=k.device)
    viewers = n - slot.clamp(min=n - q.shape[1])
    return received / viewers
