"""K-Norm: A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression
(arXiv 2406.11430)."""

from __future__ import annotations

import torch
from torch import Tensor

from .method import method


@method("knorm", decode="once")
def knorm(*, k: Tensor) -> Tensor:
    """-|k_i|, in float32: norms in bfloat16 tie, which changes the kept set."""
    k = k.to(torch.promote_types(k.dtype, torch.float32))
    return -k.square().sum(dim=-1).sqrt()
