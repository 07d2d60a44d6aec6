"""LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important
(arXiv 2504.04704)."""

from __future__ import annotations

import torch
from torch import Tensor

from .method import method, pin_first, pin_last


def lag_relative_score(x: Tensor) -> Tensor:
    """Scores of all partitions but the last, [H, P - 1, lag], of x [H, P, lag, D].

    Channels are normalised by the minimum and maximum of the *next* partition; the standard
    deviation (with Bessel's correction) over channels is turned into a softmax over the tokens of
    the partition. A channel that is constant in the next partition carries no scale and counts
    as 0; with a single channel all deviations are 0.
    """
    reference, x = x[:, 1:], x[:, :-1]
    low = reference.amin(dim=2, keepdim=True)
    span = reference.amax(dim=2, keepdim=True) - low
    normalised = torch.where(span > 0, (x - low) / span.where(span > 0, 1.0), 0.0)
    if x.shape[-1] == 1:
        return torch.full_like(normalised[..., 0], 1 / x.shape[2])
    return normalised.std(dim=-1).softmax(dim=-1)


@method("lagkv", sinks=4, recent=128)
def lagkv(*, k: Tensor, v: Tensor, sinks: int = 4, lag: int = 128) -> Tensor:
    """Deviation relative to the partition that follows, keys and values averaged.

    After ``sinks`` entries the cache is cut into partitions of ``lag``. The sinks are pinned, and
    so are the last partition, which has no reference, and the remainder. A cache shorter than
    sinks + 2 lag is ranked by recency.
    """
    heads, n = k.shape[:2]
    dtype = torch.promote_types(k.dtype, torch.float32)
    if n < sinks + 2 * lag:
        recency = torch.arange(n, device=k.device, dtype=dtype)
        return pin_first(recency.expand(heads, n), sinks)
    partitions = (n - sinks) // lag
    body = slice(sinks, sinks + partitions * lag)

    def relative(x: Tensor) -> Tensor:
        return lag_relative_score(x[:, body].to(dtype).reshape(heads, partitions, lag, -1))

    scored = (relative(k) + relative(v)) / 2
    scores = k.new_zeros((heads, n), dtype=dtype)
    scores[:, sinks : sinks + (partitions - 1) * lag] = scored.flatten(1)
    return pin_first(pin_last(scores, n - sinks - (partitions - 1) * lag), sinks)
