"""Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
Distribution (arXiv 2510.00636)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rope import Rope
from .method import method, pin_first


@method("expected_attention", sinks=4, compares="layer")
def expected_attention(
    *,
    k: Tensor,
    v: Tensor,
    pos: Tensor,
    q: Tensor,
    rope: Rope,
    sinks: int = 4,
    horizon: int = 512,
    covariance: bool = True,
    value_norm: bool = True,
    epsilon: float = 0.0,
) -> Tensor:
    """The attention that a key can expect of a Gaussian of queries to come.

        E exp(q . k / sqrt(D)) = exp(mu . k / sqrt(D) + k^T Sigma k / (2 D))

    with mu and Sigma the mean and covariance of the queries before RoPE, turned by the mean
    rotation over the next positions: R-bar mu and R-bar Sigma R-bar^T. Normalised over the entries
    after the sinks, mean over the group, plus epsilon, times |v_i|.

    Args:
        k, v, pos, q, rope: as ``method`` describes; q holds the queries of all entries.
        sinks: entries that are pinned; their queries do not count.
        horizon: positions over which the rotation is averaged.
        covariance: whether Sigma is used.
        value_norm: whether to multiply by |v_i|.
        epsilon: added to the expected attention before that.
    """
    heads, n, dim = k.shape
    dtype = torch.promote_types(k.dtype, torch.float32)
    raw = rope.unrotate(q.to(dtype), pos[0, n - q.shape[1] :])
    skipped = max(0, sinks - (n - q.shape[1]))
    raw = raw[:, skipped:] if raw.shape[1] > skipped else raw
    rotation = rope.mean_rotation(int(pos[0].max()) + 1, horizon, dim).to(dtype)
    mean = raw.mean(dim=1)
    keys = k.to(dtype)
    logits = torch.einsum("hgd,hnd->hgn", (mean @ rotation.T).reshape(heads, -1, dim), keys)
    logits = logits * dim**-0.5
    if covariance:
        centred = (raw - mean[:, None]) @ rotation.T  # R-bar (q - mu)
        sigma = (centred.mT @ centred / raw.shape[1]).reshape(heads, -1, dim, dim)
        spread = torch.einsum("hnd,hgde,hne->hgn", keys, sigma, keys)
        logits = logits + spread / (2 * dim)
    late = torch.arange(n, device=k.device) >= sinks
    logits = logits.masked_fill(~late, -torch.inf) if bool(late.any()) else logits
    scores = logits.softmax(dim=-1).mean(dim=1) + epsilon
    if value_norm:
        scores = scores * v.to(dtype).norm(dim=-1)
    return pin_first(scores, sinks)
