"""SnapKV: LLM Knows What You Are Looking for Before Generation (arXiv 2404.14469)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import attention
from .method import method, pin_last

POOLINGS = ("avg", "max", "none")
REDUCTIONS = ("mean", "sum")


@method("snapkv", recent=64, queries="window", compares="model")
def snapkv(
    *,
    k: Tensor,
    q: Tensor,
    window: int = 64,
    kernel: int = 5,
    pooling: str = "avg",
    reduction: str = "mean",
    pinned: bool = True,
) -> Tensor:
    """Attention from the last ``window`` queries, pooled over neighbours; the window pinned.

    Reduced over the window, pooled over the entries before it with a zero-padded odd ``kernel``,
    averaged over the group's query heads.

    Args:
        k, q: as ``method`` describes; q holds at least the window.
        window: trailing queries that vote, and entries that are pinned. 32 in some papers.
        kernel: width of the pooling, odd.
        pooling: "avg", "max" or "none".
        reduction: over the window: "mean", or "sum" as in the original code.
        pinned: whether the window is kept in any case; otherwise it is ranked like all others.
    """
    n = k.shape[1]
    window = min(window, n)
    if q.shape[1] < window:
        raise ValueError(f"q: got {q.shape[1]} queries, expected at least {window}, the window")
    if pooling not in POOLINGS:
        raise ValueError(f"pooling: got {pooling!r}, expected one of {POOLINGS}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: got {reduction!r}, expected one of {REDUCTIONS}")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel: got {kernel}, expected an odd number")
    scores = k.new_zeros(k.shape[:-1], dtype=torch.promote_types(k.dtype, torch.float32))
    prefix = n - window if pinned else n
    if prefix > 0 and window > 0:
        weights = attention(q[:, q.shape[1] - window :], k)[..., :prefix]
        votes = weights.mean(dim=2) if reduction == "mean" else weights.sum(dim=2)
        if pooling == "avg":
            votes = F.avg_pool1d(votes, kernel, stride=1, padding=kernel // 2)
        elif pooling == "max":
            votes = F.max_pool1d(votes, kernel, stride=1, padding=kernel // 2)
        scores[:, :prefix] = votes.mean(dim=1)
    return pin_last(scores, window) if pinned else scores
