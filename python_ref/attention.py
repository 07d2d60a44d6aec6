"""Attention weights as eviction methods see them: over the whole causal prefix, in float32.

Weights are produced in blocks of queries, so no T x T matrix is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def attention_blocks(
    q: Tensor,
    k: Tensor,
    *,
    offset: int | None = None,
    valid: Tensor | None = None,
    scale: float | None = None,
    block: int = 256,
) -> Iterator[tuple[int, Tensor]]:
    """Per-query-head attention, ``block`` queries at a time.

        A[h, g, t, i] = softmax_i(scale q_{h,g,t} . k_{h,i})   over the valid i <= offset + t

    Query head h G + g belongs to KV head h. A query that sees no key, or whose own slot is
    padding, has weights 0.

    Args:
        q: [..., H G, Tq, D] post-RoPE queries of slots offset .. offset + Tq - 1.
        k: [..., H, T, D] post-RoPE keys.
        offset: slot of the first query; by default T - Tq, so the queries are the last.
        valid: bool [..., T] or [..., H, T]; by default there is no padding.
        scale: of the logits; by default 1 / sqrt(D).
        block: queries per block.

    Yields:
        (first query of the block, weights [..., H, G, queries, T]) in float32, or in float64 for
        float64 inputs.
    """
    heads, slots, dim = k.shape[-3:]
    query_heads, queries = q.shape[-3], q.shape[-2]
    if query_heads % heads or q.shape[:-3] != k.shape[:-3] or q.shape[-1] != dim:
        raise ValueError(
            f"q: got shape {list(q.shape)}, expected [..., a multiple of {heads}, Tq, {dim}] for "
            f"k of shape {list(k.shape)}"
        )
    if offset is None:
        offset = slots - queries
    if offset < 0 or offset + queries > slots:
        raise ValueError(
            f"offset: got {offset} for {queries} queries, expected their slots within the "
            f"{slots} slots of k"
        )
    dtype = torch.promote_types(k.dtype, torch.float32)
    q = q.to(dtype).reshape(*q.shape[:-3], heads, query_heads // heads, queries, dim)
    k = k.to(dtype)
    if valid is None:
        valid = torch.ones(slots, dtype=torch.bool, device=k.device)
    if valid.dim() < k.dim() - 1:
        valid = valid.unsqueeze(-2)
    scale = dim**-0.5 if scale is None else scale
    slot = torch.arange(slots, device=k.device)
    for start in range(0, queries, block):
        q_block = q[..., start : start + block, :]
        q_slot = offset + start + torch.arange(q_block.shape[-2], device=k.device)
        causal = slot <= q_slot[:, None]
        visible = causal & valid[..., None, :] & valid[..., q_slot][..., None]
        visible = visible.unsqueeze(-3)
        logits = scale * torch.einsum("...hgtd,...hid->...hgti", q_block, k)
        weights = logits.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        yield start, weights.masked_fill(~visible, 0.0)


def attention(q: Tensor, k: Tensor) -> Tensor:
    """Attention of the last queries at once, [..., H, G, Tq, T]: for a few queries."""
    blocks = [weights for _, weights in attention_blocks(q, k)]
    return torch.cat(blocks, dim=-2)


def group_attention_blocks(
    q: Tensor,
    k: Tensor,
    *,
    offset: int | None = None,
    valid: Tensor | None = None,
    scale: float | None = None,
    block: int = 256,
) -> Iterator[tuple[int, Tensor]]:
    """Group attention A[t, i] = max over the G query heads, in blocks [..., H, queries, T].

    Arguments as ``attention_blocks`` takes them.
    """
    blocks = attention_blocks(q, k, offset=offset, valid=valid, scale=scale, block=block)
    for start, weights in blocks:
        yield start, weights.amax(dim=-3)


def attention_received(q: Tensor, k: Tensor, *, block: int = 256) -> Tensor:
    """Attention that each key receives from the last queries, per query head.

    sum_t A[h, g, t, i], [..., H, G, T]. Arguments as ``attention_blocks`` takes them.
    """
    groups = q.shape[-3] // k.shape[-3]
    shape = (*k.shape[:-2], groups, k.shape[-2])
    total = k.new_zeros(shape, dtype=torch.promote_types(k.dtype, torch.float32))
    for _, weights in attention_blocks(q, k, block=block):
        total += weights.sum(dim=-2)
    return total
