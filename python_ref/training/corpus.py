"""Batches from traces: items are drawn, then tokens of each; only those are read.

An item is a context cached at one split point: the first n tokens of a trace and the utility that
they have for what follows. A trace is drawn with a chance proportional to its length, then one of
its splits, then tokens. Everything drawn at a step follows from the recipe's seed, the phase and
the step, never from what was drawn before: so an interrupted training can go on anywhere, and
several processes draw the same without talking.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from python_ref.training.recipe import Phase
from python_ref.training.traces import Trace


@dataclass(frozen=True)
class Item:
    """Tokens drawn of one item.

    Attributes:
        trace, split: which.
        index: [tokens], ascending.
        weight: [tokens], how many tokens of the context each stands for.
    """

    trace: int
    split: int
    index: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Tokens:
    """The data of drawn items, their tokens one after the other.

    Attributes:
        k, v: [L, 1, H, items tokens, D] fp32.
        pos: [items tokens].
        length: [items tokens], of the context that each is a token of.
        utility: [L, H, items, tokens] fp32.
        weight: [items, tokens].
    """

    k: Tensor
    v: Tensor
    pos: Tensor
    length: Tensor
    utility: Tensor
    weight: Tensor


class Corpus:
    """Traces to train on.

    Attributes:
        layers, kv_heads, head_dim_k, head_dim_v: geometry.
        longest: longest context, the largest split of any trace.
    """

    def __init__(self, traces: Sequence[Trace], *, in_memory: bool | None = None) -> None:
        """Look at every trace's geometry.

        Args:
            traces: equal in layers, heads and channels.
            in_memory: copy them into memory; by default if they take less than a quarter of it.
                Otherwise a step reads the tokens it draws, from memory-mapped files as a rule.

        Raises:
            ValueError: no traces, or one that does not fit the others.
        """
        if len(traces) == 0:
            raise ValueError("traces: got none, expected at least one")
        self.traces = traces
        self.splits: list[tuple[int, ...]] = []
        self.marked: list[Tensor] = []
        first = traces[0]
        self.layers, self.kv_heads, _, self.head_dim_k = first.k.shape
        self.head_dim_v = first.v.shape[-1]
        size = 0
        for number, trace in enumerate(traces):
            check_trace(f"traces[{number}]", trace, first)
            self.splits.append(tuple(trace.splits))
            self.marked.append(trace.marked.clone())
            size += _bytes(trace)
        self.longest = max(max(splits) for splits in self.splits)
        self._chances = torch.tensor([float(max(splits)) for splits in self.splits])
        if in_memory is None:
            in_memory = size < _physical_memory() / 4
        if in_memory:
            self.traces = [_copied(trace) for trace in traces]

    def draw(self, phase: Phase, items: int, tokens: int, generator: torch.Generator) -> list[Item]:
        """Draw items and their tokens; a context that is too short gives tokens more than once."""
        chosen = torch.multinomial(self._chances, items, replacement=True, generator=generator)
        drawn = []
        for trace in chosen.tolist():
            splits = self.splits[trace]
            split = int(torch.randint(len(splits), (), generator=generator))
            drawn.append((trace, split, splits[split]))
        tokens = min(tokens, max(n for _, _, n in drawn))
        return [
            Item(
                trace,
                split,
                *draw_tokens(self.marked[trace][:n], tokens, phase.marked_weight, generator),
            )
            for trace, split, n in drawn
        ]

    def read(self, items: Sequence[Item], layers: slice, device: torch.device | str) -> Tokens:
        """The data of ``items``, of equally many tokens each, in some of the layers."""
        tokens = len(items[0].index)
        count = len(range(*layers.indices(self.layers)))
        total = len(items) * tokens
        first = self.traces[items[0].trace]
        k = first.k.new_empty(count, self.kv_heads, total, self.head_dim_k)
        v = first.v.new_empty(count, self.kv_heads, total, self.head_dim_v)
        utility = torch.empty(count, self.kv_heads, len(items), tokens)
        for i, item in enumerate(items):
            trace = self.traces[item.trace]
            own = slice(i * tokens, (i + 1) * tokens)
            k[:, :, own] = trace.k[layers].index_select(2, item.index)
            v[:, :, own] = trace.v[layers].index_select(2, item.index)
            utility[:, :, i] = trace.utilities[item.split][layers].index_select(2, item.index)
        lengths = torch.tensor([self.splits[item.trace][item.split] for item in items])
        return Tokens(
            k.to(device).float().unsqueeze(1),
            v.to(device).float().unsqueeze(1),
            torch.cat([item.index for item in items]).to(device),
            lengths.repeat_interleave(tokens).to(device),
            utility.to(device),
            torch.stack([item.weight for item in items]).to(device),
        )

    def fingerprint(self) -> str:
        """A digest of the traces: of their shapes, splits and some of their values."""
        digest = hashlib.sha256()
        for trace in self.traces:
            digest.update(repr((trace.kind, tuple(trace.k.shape), tuple(trace.splits))).encode())
            for x in (trace.k[0, 0, -1], trace.v[-1, -1, -1], trace.utilities[-1][-1, -1, -64:]):
                digest.update(x.float().numpy().tobytes())
            digest.update(trace.marked.numpy().tobytes())
        return digest.hexdigest()[:16]


def draw_tokens(
    marked: Tensor, count: int, marked_weight: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw ``count`` of n tokens without replacement, marked ones ``marked_weight`` times likelier.

    The sample is stratified: as many marked tokens as they would make up on average if each
    occurred ``marked_weight`` times, at least one of each stratum and no token twice, if there are
    enough of them. Within a stratum every token is equally likely.

    Args:
        marked: [n] bool.

    Returns:
        index [count] ascending, and weight [count]: the tokens of the stratum over those drawn of
        it, so that for any function f of a token E[sum_i weight_i f(index_i)] = sum of f over the
        context.
    """
    n, m = len(marked), int(marked.sum())
    order = torch.randperm(n, generator=generator)
    if marked_weight == 1 or m in (0, n) or count < 2:
        return _first(order, count).sort().values, torch.full((count,), n / count)
    share = marked_weight * m / (marked_weight * m + n - m)
    among = max(1, min(round(share * count), m, count - 1))
    among = max(among, min(m, count - (n - m)))
    is_marked = marked[order]
    drawn = (_first(order[is_marked], among), _first(order[~is_marked], count - among))
    weight = torch.full((count,), (n - m) / (count - among))
    weight[:among] = m / among
    index, ascending = torch.cat(drawn).sort()
    return index, weight[ascending]


def _first(order: Tensor, count: int) -> Tensor:
    """The first ``count`` of a permutation, which begins anew where it ends."""
    return order.repeat(-(-count // len(order)))[:count]


def generator_for(*key: object) -> torch.Generator:
    """A generator whose seed is a digest of the key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def check_trace(name: str, trace: Trace, first: Trace) -> None:
    """Raise a ValueError unless the trace is whole and of the geometry of ``first``."""
    layers, heads, tokens, dim_k = trace.k.shape
    geometry = (layers, heads, dim_k, trace.v.shape[-1])
    expected = (*first.k.shape[:2], first.k.shape[-1], first.v.shape[-1])
    if geometry != expected:
        raise ValueError(
            f"{name}: got [L, H, Dk, Dv] = {list(geometry)}, expected {list(expected)} as in "
            "traces[0]"
        )
    if not trace.splits or len(trace.splits) != len(trace.utilities):
        raise ValueError(
            f"{name}: got {len(trace.splits)} splits and {len(trace.utilities)} utilities, "
            "expected as many of each, at least one"
        )
    for n, utility in zip(trace.splits, trace.utilities, strict=True):
        if not 1 <= n <= tokens or utility.shape != (layers, heads, n):
            raise ValueError(
                f"{name}: got a split at {n} with utilities {list(utility.shape)}, expected 1 to "
                f"{tokens} and {[layers, heads, n]}"
            )


def _bytes(trace: Trace) -> int:
    tensors = (trace.k, trace.v, *trace.utilities)
    return sum(x.numel() * x.element_size() for x in tensors)


def _copied(trace: Trace) -> Trace:
    return dataclasses.replace(
        trace,
        k=trace.k.clone(),
        v=trace.v.clone(),
        utilities=tuple(u.clone() for u in trace.utilities),
        marked=trace.marked.clone(),
        queries=None,
    )


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
