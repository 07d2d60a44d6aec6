"""Random: the control that any method must beat."""

from __future__ import annotations

import torch
from torch import Tensor

from .method import method


@method("random", compares="model")
def random(*, k: Tensor, row: Tensor, seed: int = 0) -> Tensor:
    """Uniform noise in [0, 1), the same on every device.

    Each row of the cache has its own stream, so padding does not change its noise.
    """
    noise = []
    for r in row.tolist():
        generator = torch.Generator().manual_seed(1_000_003 * seed + r)
        noise.append(torch.rand(k.shape[1], generator=generator))
    return torch.stack(noise).to(k.device)
