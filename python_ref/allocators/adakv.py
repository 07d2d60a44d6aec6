"""Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation (arXiv 2407.11550)."""

from __future__ import annotations

import torch
from torch import Tensor

from .allocator import Request, allocator, counts_of_best


@allocator("adakv", compares="layer")
def adakv(request: Request, *, safeguard: float = 0.2) -> Tensor:
    """The heads of a layer compete for most of its part, and share the rest evenly.

    A layer's part is the average times its heads. The fraction ``safeguard`` of it is shared
    evenly; of the remaining fraction a head gets its share of the layer's best entries.

    Args:
        request: what to share.
        safeguard: from 0 to 1; 1 is uniform. 0.2 in the paper.
    """
    if not 0 <= safeguard <= 1:
        raise ValueError(f"safeguard: got {safeguard}, expected a number from 0 to 1")
    layers, heads = request.low.shape
    part = request.total / layers
    wished = []
    for scores, valid, pinned, low in zip(
        request.scores, request.valid, request.pinned, request.low, strict=True
    ):
        rest = max(0, int(part) - int(low.sum()))
        best = low + counts_of_best(scores, valid & ~pinned, rest)
        wished.append(safeguard * part / heads + (1 - safeguard) * best.double())
    return torch.stack(wished)
