"""PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling
(arXiv 2406.02069)."""

from __future__ import annotations

import torch
from torch import Tensor

from .allocator import Request, allocator


@allocator("pyramid")
def pyramid(request: Request, *, beta: float = 20.0) -> Tensor:
    """Budgets that fall from the first layer to the last in equal steps; heads of a layer share.

    With average b the last layer gets b / beta and the first 2 b - b / beta.

    Args:
        request: what to share.
        beta: at least 1; 1 is uniform. 20 in the paper.
    """
    if beta < 1:
        raise ValueError(f"beta: got {beta}, expected at least 1")
    layers, heads = request.low.shape
    smallest = 1 / beta
    steps = torch.linspace(2 - smallest, smallest, layers) if layers > 1 else torch.ones(1)
    return steps[:, None].expand(layers, heads)
