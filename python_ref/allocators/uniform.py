"""Uniform: every row keeps the same."""

from __future__ import annotations

import torch
from torch import Tensor

from .allocator import Request, allocator


@allocator("uniform")
def uniform(request: Request) -> Tensor:
    """Every row the same; what a short row cannot hold goes to the others."""
    return torch.ones(request.low.shape)
