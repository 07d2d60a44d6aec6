"""CapKV: Rethinking KV Cache Eviction via a Unified Information-Theoretic Objective
(arXiv 2604.25975)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rope import Rope
from .method import method, pin_first

FORMS = ("stabilised", "plain")


def mean_query(q: Tensor, pos: Tensor, rope: Rope, sinks: int, horizon: int) -> Tensor:
    """mu of every query head as positions to come will see it: R-bar q, mean over the queries.

    Args:
        q: [H G, Tq, D] post-RoPE queries, those of the first ``sinks`` entries left out.
        pos: [n] of the entries; the queries are of the last Tq.
        rope: of the model.
        sinks: entries whose queries do not count.
        horizon: positions after the last one over which the rotation is averaged.

    Returns:
        [H G, D].
    """
    raw = rope.unrotate(q, pos[len(pos) - q.shape[1] :])
    skipped = max(0, sinks - (len(pos) - q.shape[1]))
    used = raw[:, skipped:] if raw.shape[1] > skipped else raw
    rotation = rope.mean_rotation(int(pos.max()) + 1, horizon, q.shape[-1])
    return used.mean(dim=1) @ rotation.to(used.dtype).T


def leverage(weight: Tensor, v: Tensor, counted: Tensor) -> Tensor:
    """One-shot gains [H, G, n]: w_i v_i^T A^-1 v_i with A = I + sum_{i counted} (w_i + 1e-6) v v^T.

    A is factored once (Cholesky) and never inverted: v^T A^-1 v = |C^-1 v|^2 for A = C C^T.

    Args:
        weight: w [H, G, n].
        v: [H, n, D].
        counted: bool [n].
    """
    share = (weight + 1e-6) * counted
    gram = torch.einsum("hgn,hnd,hne->hgde", share, v, v)
    gram += torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
    factor = torch.linalg.cholesky(gram)
    solved = torch.linalg.solve_triangular(factor, v.mT[:, None], upper=False)
    return weight * solved.square().sum(dim=-2)


def greedy_order(weight: Tensor, v: Tensor, budget: int | None = None) -> Tensor:
    """Entries in the order in which a greedy search adds them, [n] int64: the largest gain first.

    Maximises log det(I + sum_{i in S} w_i v_i v_i^T) one entry at a time. The gain of i is
    log(1 + w_i v_i^T A^-1 v_i) with A of the entries chosen before, ties in favour of the lower.

    Args:
        weight: w [n] of one query head.
        v: [n, D].
        budget: entries to choose; by default all.
    """
    n = len(v)
    inverse_v = v.clone()  # A^-1 v_i, brought up to date by Sherman-Morrison
    gain = weight * v.square().sum(dim=-1)
    chosen = torch.full((n,), -1, dtype=torch.int64, device=v.device)
    free = torch.ones(n, dtype=torch.bool, device=v.device)
    for step in range(n if budget is None else min(n, budget)):
        best = int(gain.masked_fill(~free, -torch.inf).argmax())
        chosen[step], free[best] = best, False
        column = inverse_v[best].clone()
        factor = weight[best] / (1 + weight[best] * (v[best] @ column))
        inverse_v -= factor * torch.outer(v @ column, column)
        gain = weight * (v * inverse_v).sum(dim=-1)
    return chosen[chosen >= 0]


@method("capkv", sinks=4)
def capkv(
    *,
    k: Tensor,
    v: Tensor,
    pos: Tensor,
    q: Tensor,
    rope: Rope,
    tau: float = 5.0,
    sinks: int = 4,
    horizon: int = 512,
    form: str = "stabilised",
    greedy: bool = False,
) -> Tensor:
    """The part of each entry in the capacity log det(I + sum_i w_i v_i v_i^T), mean over the group.

        w_i = exp(tau cos(k_i, mu) - max)        mu = mean_t R-bar q_t        "stabilised"
        w_i = exp(k_i . mu / sqrt(D) - max)      mu = mean_t q_t              "plain"

    The plain form is the paper's, on queries as they are; the scaling by sqrt(D) is chosen here, as
    in attention. The stabilised one is that of the authors' code.

    Args:
        k, v, pos, q, rope: as ``method`` describes; q holds the queries of all entries.
        tau: sharpness of the stabilised weights.
        sinks: entries that are pinned and take no part in A, nor their queries in mu.
        horizon: positions over which R-bar averages.
        form: "stabilised" or "plain".
        greedy: rank by the order of a greedy search instead of the one-shot gain: n steps of O(n D)
            for every query head, for small n.
    """
    if form not in FORMS:
        raise ValueError(f"form: got {form!r}, expected one of {FORMS}")
    heads, n, dim = k.shape
    dtype = torch.promote_types(k.dtype, torch.float32)
    keys, values = k.to(dtype), v.to(dtype)
    if form == "stabilised":
        mu = mean_query(q.to(dtype), pos[0], rope, sinks, horizon)
        mu = F.normalize(mu, dim=-1).reshape(heads, -1, dim)
        logits = tau * torch.einsum("hgd,hnd->hgn", mu, F.normalize(keys, dim=-1))
    else:
        skipped = max(0, sinks - (n - q.shape[1]))
        used = q[:, skipped:] if q.shape[1] > skipped else q
        mu = used.to(dtype).mean(dim=1).reshape(heads, -1, dim)
        logits = torch.einsum("hgd,hnd->hgn", mu, keys) * dim**-0.5
    weight = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    if greedy:
        ranked = torch.empty_like(weight)
        place = torch.arange(n, 0, -1, dtype=dtype, device=k.device)
        for h, g in torch.cartesian_prod(*map(torch.arange, weight.shape[:2])).tolist():
            ranked[h, g, greedy_order(weight[h, g], values[h])] = place
        return pin_first(ranked.mean(dim=1), sinks)
    counted = torch.arange(n, device=k.device) >= sinks
    return pin_first(leverage(weight, values, counted).mean(dim=1), sinks)
