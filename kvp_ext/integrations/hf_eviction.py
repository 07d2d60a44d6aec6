"""One eviction of a `KVPCache`: numbers for what is new, budgets, `evict_`, smaller storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from python_ref.allocators import Allocator, allocate
from python_ref.budgets import budget_from_ratio

from ..eviction import evict_
from ..policy import Policy
from .hf_buffers import new_buffer
from .hf_entries import Entries, Rows
from .hf_layers import KVPLayer
from .hf_scorers import LayerEntries, Ranking


@dataclass(frozen=True)
class Rule:
    """How to evict: arguments of `KVPCache`."""

    budget: int | float
    policy: Policy | None
    allocator: Allocator
    sinks: int
    recent: int
    mode: Any
    backend: str | None

    def average(self, tokens: int) -> int:
        """Entries to keep in a row, on average, of a sequence of so many tokens."""
        if isinstance(self.budget, int):
            return self.budget
        return budget_from_ratio(tokens, keep_ratio=self.budget)


@dataclass(frozen=True)
class Storage:
    """What an eviction changes.

    Attributes:
        layers: those that are evicted, by their index in the model.
        count: layers of the model.
        entries: their positions.
        queries: of the last tokens, by layer.
    """

    layers: Mapping[int, KVPLayer]
    count: int
    entries: Entries
    queries: Mapping[int, Tensor]

    def places(self, tensors: Sequence[Tensor]) -> list[Tensor | None]:
        """One place for every layer of the model; `None` where nothing is evicted."""
        places: list[Tensor | None] = [None] * self.count
        for i, tensor in zip(self.layers, tensors, strict=True):
            places[i] = tensor
        return places

    def positions(self) -> list[Tensor]:
        """Of every layer, `[B, H, slots]`."""
        found = []
        for layer in self.layers.values():
            keys, _ = layer.used()
            found.append(layer.rows.used().expand(-1, keys.shape[1], -1))
        return found


def evict_storage(storage: Storage, ranking: Ranking, rule: Rule, evictions: int) -> Tensor | None:
    """Evicts all layers at once. On an error nothing has changed.

    Args:
        evictions: how many there were before.

    Returns:
        int32 `[L, B, H]`, entries of every row of the model now; `None` if none had too many.
    """
    layers, entries = list(storage.layers.values()), storage.entries
    assert entries.next_pos is not None
    pos = storage.positions()
    averages = [rule.average(tokens) for tokens in entries.next_pos.tolist()]
    held = torch.stack([(row >= 0).sum(-1) for row in pos])
    if not _too_many(held.cpu(), averages, rule):
        return None
    keys, values = zip(*(layer.used() for layer in layers), strict=True)
    # One call scores, selects and compacts, unless the budgets wait for the scores.
    fused = rule.allocator.name == "uniform" and rule.policy is not None
    numbers: list[Tensor] | None = None
    scores: list[Tensor] | None = None
    if not fused:
        numbers = _numbers(storage, ranking, evictions)
        scores = [ranking.scores(x, p, entries.next_pos) for x, p in zip(numbers, pos, strict=True)]
    elif layers[0].score_buffer is not None:
        scores = numbers = [layer.scores() for layer in layers]
    moved_apart = scores is not None and any(
        a is not b for a, b in zip(scores, numbers or [], strict=True)
    )
    result = evict_(
        storage.places(keys),
        storage.places(values),
        pos[0][:, 0] if entries.shared else storage.places(pos),
        _budgets(scores, pos, averages, storage, rule),
        policy=rule.policy if fused else None,
        sinks=rule.sinks,
        recent=rule.recent,
        mode=rule.mode,
        scores=None if scores is None else storage.places(scores),
        return_indices=moved_apart,
        backend=rule.backend,
    )
    present = list(storage.layers)
    lengths = result.lengths[present].cpu()
    rows = []
    for i, layer in enumerate(layers):
        slots = int(lengths[i].max())
        if moved_apart and layer.score_buffer is not None:
            assert result.kept is not None
            kept = result.kept[present[i], ..., :slots]
            layer.score_buffer[:, :, :slots] = layer.score_buffer.gather(
                2, kept.clamp(min=0).long()
            ).masked_fill(kept < 0, torch.nan)
        shape = (*lengths.shape[1:], slots + entries.extent.headroom)
        table = new_buffer(entries.next_pos, shape, -1)
        table[..., :slots] = result.pos[present[i], ..., :slots]
        layer.rows = Rows(table, slots)
        layer.scored = slots
        layer.shrink()
        rows.append(layer.rows)
    entries.replace(rows, ragged=bool((lengths != lengths.max()).any()))
    return result.lengths


def _too_many(held: Tensor, averages: Sequence[int], rule: Rule) -> bool:
    """Whether a sequence holds more entries `[L, B, H]` than its rows may on average."""
    limit = torch.tensor(averages)[None, :, None]
    if rule.allocator.name == "uniform":
        return bool((held > limit).any())
    return bool((held.sum((0, 2)) > limit[0, :, 0] * held.shape[0] * held.shape[2]).any())


def _numbers(storage: Storage, ranking: Ranking, evictions: int) -> list[Tensor]:
    """The ranking's numbers of all entries, those that stay with their entries in their buffers."""
    keep = ranking.once and next(iter(storage.layers.values())).score_buffer is not None
    views = []
    for (i, layer), pos in zip(storage.layers.items(), storage.positions(), strict=True):
        keys, values = layer.used()
        new = slice(layer.scored if keep else 0, layer.rows.slots)
        queries = storage.queries.get(i)
        views.append(
            LayerEntries(
                i, keys[:, :, new], values[:, :, new], pos[..., new], queries, storage.entries.fresh
            )
        )
    if not keep:
        return ranking.numbers(views, evictions)
    layers = list(storage.layers.values())
    if not ranking.hidden:
        for layer, found in zip(layers, ranking.numbers(views, evictions), strict=True):
            layer.scores()[..., layer.scored :] = found
    return [layer.scores() for layer in layers]


def _budgets(
    scores: Sequence[Tensor] | None,
    pos: Sequence[Tensor],
    averages: Sequence[int],
    storage: Storage,
    rule: Rule,
) -> int | Tensor:
    """What `evict_` takes as its budget: of all rows, or of every row of the model."""
    heads = pos[0].shape[1]
    if rule.allocator.name == "uniform":
        if len(set(averages)) == 1:
            return averages[0]
        per_layer = torch.tensor(averages, dtype=torch.int32, device=pos[0].device)
        per_layer = per_layer.expand(storage.count, -1)
        return per_layer if rule.mode == "union" else per_layer[..., None].expand(-1, -1, heads)
    assert scores is not None
    slots = max(p.shape[-1] for p in pos)
    wide = [torch.nn.functional.pad(s, (0, slots - s.shape[-1]), value=torch.nan) for s in scores]
    valid = [torch.nn.functional.pad(p >= 0, (0, slots - p.shape[-1])) for p in pos]
    shares = allocate(
        rule.allocator,
        torch.stack(wide),
        torch.tensor(averages, device=pos[0].device),
        valid=torch.stack(valid),
        sinks=rule.sinks,
        recent=rule.recent,
    )
    budgets = shares.new_ones(storage.count, *shares.shape[1:])
    budgets[list(storage.layers)] = shares
    if rule.mode == "union":
        if bool((budgets != budgets[..., :1]).any()):
            raise ValueError(
                f"mode is 'union' and the allocator {rule.allocator.name!r} gave the heads of a "
                "layer different budgets, expected mode='per_head'"
            )
        budgets = budgets[..., 0]
    return budgets.to(torch.int32)
