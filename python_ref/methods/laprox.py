"""LaProx: Reformulating KV Cache Eviction for Long-Context LLM Inference (arXiv 2605.07234)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import attention
from .method import method, pin_last

GROUPINGS = ("mean", "rms")


def output_norm(v: Tensor, gram: Tensor) -> Tensor:
    """|v_i W_O^h| of every query head, sqrt(v^T (W^T W) v), [H, G, n].

    Args:
        v: [H, n, D].
        gram: W^T W [H G, D, D].
    """
    heads, _, dim = v.shape
    by_group = gram.to(v).reshape(heads, -1, dim, dim)
    squared = torch.einsum("hnd,hgde,hne->hgn", v, by_group, v)
    return squared.clamp(min=0).sqrt()


@method("laprox", recent=32, queries="window", compares="model")
def laprox(
    *,
    k: Tensor,
    v: Tensor,
    q: Tensor,
    gram: Tensor,
    window: int = 32,
    kernel: int = 7,
    grouping: str = "mean",
    normalise: bool = True,
    pinned: bool = True,
) -> Tensor:
    """What an entry adds to the outputs of the last ``window`` queries; the window pinned.

        p_{h,i} = |A_h[:, i]| |v_i W_O^h|

    The product of attention and projected values is a sum over entries of column times row, and
    p is the norm of one summand: the norm of the product lost without it. Average-pooled over
    neighbours.

    With ``normalise`` a layer's scores are divided by their sum over all its heads and entries,
    which makes them comparable across the model: the paper keeps the best of all layers and heads.

    Args:
        k, v, q: as ``method`` describes; q holds at least the window.
        gram: [H G, Dv, Dv] of ``rope.output_grams``.
        window: trailing queries, and entries that are pinned.
        kernel: width of the pooling, odd; 1 for none.
        grouping: over the query heads of a group: "mean" of p, or "rms": the mean attention times
            the root mean square of the output norms.
        normalise: per layer.
        pinned: whether the window is kept in any case; otherwise it is ranked like all others.
    """
    n = k.shape[1]
    window = min(window, n)
    if q.shape[1] < window:
        raise ValueError(f"q: got {q.shape[1]} queries, expected at least {window}, the window")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel: got {kernel}, expected an odd number")
    if grouping not in GROUPINGS:
        raise ValueError(f"grouping: got {grouping!r}, expected one of {GROUPINGS}")
    dtype = torch.promote_types(k.dtype, torch.float32)
    scores = k.new_zeros(k.shape[:-1], dtype=dtype)
    prefix = n - window if pinned else n
    if prefix > 0 and window > 0:
        weights = attention(q[:, q.shape[1] - window :], k)[..., :prefix]
        norms = output_norm(v[:, :prefix].to(dtype), gram)
        if grouping == "mean":
            p = (weights.norm(dim=2) * norms).mean(dim=1)
        else:
            p = weights.mean(dim=1).norm(dim=1) * norms.square().mean(dim=1).sqrt()
        p = F.avg_pool1d(p, kernel, stride=1, padding=kernel // 2)
        total = p.sum()
        scores[:, :prefix] = p / total if normalise and total > 0 else p
    return pin_last(scores, window) if pinned else scores
