"""Compaction: move the kept entries of each row to its front, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .positions import layer_positions
from .selection import Selection, valid_entries

ORDERS = ("stable", "any")


@dataclass
class Compacted:
    """What a compaction did.

    Attributes:
        pos: [L, B, H, N] in the dtype of the positions given, the survivors' positions, then -1.
        kept: int32 [L, B, H, N], the old slot of each survivor, then -1.
        lengths: int32 [L, B, H].
        evicted: False if every row stayed as it was.
    """

    pos: Tensor
    kept: Tensor
    lengths: Tensor
    evicted: bool


def survivor_order(kept: Tensor, order: str = "stable") -> Tensor:
    """The old slot for each new slot of one row.

    Args:
        kept: [n] ascending slots.
        order: "stable" keeps them ascending. "any" moves the fewest entries: those in slots below
            n stay, and the holes between them, in ascending order, take the others, in ascending
            order.
    """
    if order == "stable":
        return kept
    if order != "any":
        raise ValueError(f"order: got {order!r}, expected one of {ORDERS}")
    n = len(kept)
    source = torch.arange(n, dtype=kept.dtype, device=kept.device)
    hole = ~torch.isin(source, kept)
    source[hole] = kept[kept >= n]
    return source


def compact_(
    k_cache: Tensor | Sequence[Tensor | None],
    v_cache: Tensor | Sequence[Tensor | None],
    pos: Tensor | Sequence[Tensor | None],
    scores: Tensor | None,
    selection: Selection,
    order: str = "stable",
    lengths: Tensor | int | None = None,
) -> Compacted:
    """Compact a cache to the selected entries.

    A row whose entries neither leave nor move is untouched. Elsewhere survivors are moved bit for
    bit. Slots past the new length become padding: K and V keep their old bytes, per-head positions
    become -1 and scores NaN.

    Args:
        k_cache, v_cache: [L, B, H, T, D] or L tensors [B, H, T, D], changed in place; None layers
            are skipped.
        pos: integers [T], [B, T], [L, B, H, T] or L tensors [B, H, T]. Per-head positions move
            along in place; shared ones cannot, so use the result's.
        scores: [L, B, H, T] moved along in place, or None.
        selection: from ``select``.
        order: "stable" or "any"; see ``survivor_order``.
        lengths: as they were given to ``select``: they tell which entries leave.
    """
    layers, batch, heads, _ = selection.kept.shape
    per_head = not isinstance(pos, Tensor) or pos.dim() == 4
    given = pos if isinstance(pos, Tensor) else next(p for p in pos if p is not None)
    new_pos = torch.full(selection.kept.shape, -1, dtype=given.dtype, device=selection.kept.device)
    new_kept = torch.full_like(selection.kept, -1)
    if lengths is not None:
        lengths = torch.as_tensor(lengths, device=selection.kept.device)
    evicted = False
    for layer in range(layers):
        k, v = k_cache[layer], v_cache[layer]
        if k is None or v is None:
            continue
        layer_pos = layer_positions(pos, layer, batch, heads, k.shape[2])
        own = lengths[layer : layer + 1] if lengths is not None and lengths.dim() == 3 else lengths
        n_valid = valid_entries(layer_pos[None], own)[0].sum(dim=-1)
        for b in range(batch):
            for h in range(heads):
                n = int(selection.lengths[layer, b, h])
                source = survivor_order(selection.kept[layer, b, h, :n], order).long()
                new_kept[layer, b, h, :n] = source
                new_pos[layer, b, h, :n] = layer_pos[b, h, source]
                stays = torch.equal(source, torch.arange(n, device=source.device))
                if stays and n == int(n_valid[b, h]):
                    continue
                evicted = True
                k[b, h, :n] = k[b, h, source]
                v[b, h, :n] = v[b, h, source]
                if per_head:
                    layer_pos[b, h, :n] = layer_pos[b, h, source]
                    layer_pos[b, h, n:] = -1
                if scores is not None:
                    scores[layer, b, h, :n] = scores[layer, b, h, source]
                    scores[layer, b, h, n:] = torch.nan
    return Compacted(new_pos, new_kept, selection.lengths, evicted)
