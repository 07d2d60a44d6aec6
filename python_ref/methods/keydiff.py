"""KeyDiff: Key Similarity-Based KV Cache Eviction (arXiv 2504.15364)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .method import method


@method("keydiff")
def keydiff(*, k: Tensor) -> Tensor:
    """Dissimilarity to the mean direction of the keys: -cos(k_i, mean_j k_j / |k_j|).

    A zero vector has cosine 0 with everything.
    """
    unit = F.normalize(k.to(torch.promote_types(k.dtype, torch.float32)), dim=-1)
    anchor = F.normalize(unit.mean(dim=1), dim=-1)
    return -torch.einsum("hid,hd->hi", unit, anchor)
