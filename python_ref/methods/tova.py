"""TOVA: Transformers are Multi-State RNNs (arXiv 2401.06104)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention import attention
from .method import method


@method("tova", queries=1, compares="model")
def tova(*, k: Tensor, q: Tensor) -> Tensor:
    """Attention of the last query, averaged over all query heads of the layer.

    So every KV head of a layer gets the same scores and keeps the same entries.
    """
    if q.shape[1] == 0:
        raise ValueError("q: got no query, expected that of the last entry")
    mean = torch.einsum("hgti->i", attention(q[:, -1:], k)) / q.shape[0]
    return mean.expand(k.shape[:-1])
