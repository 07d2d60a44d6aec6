"""What an eviction method is, and how one is applied to a cache."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rope import Rope

QUERY_INPUTS = frozenset({"q", "future_q"})

_REGISTRY: dict[str, Method] = {}


@dataclass(frozen=True)
class Method:
    """An eviction method.

    Attributes:
        name: in the registry.
        score: scores [H, n] of one sequence without padding, from the keyword tensors it reads.
        reads: names of those tensors: arguments of ``__call__``, or "row", a number for each row.
        options: of the method, with their defaults.
        sinks, recent: leading and trailing entries that the method itself keeps always. Its scores
            already rank them above all others.
        queries: how many of the last queries it reads: a number, the name of the option that says
            how many, or None for all.
        decode: how it can run while a model decodes: "once", the score of an entry never changes;
            "again", from what the cache holds and the queries since the last eviction; or "", not
            at all.
        compares: the widest span in which its scores are on one scale, so that rows may compete
            for a budget by them: a "row", a "layer" or the "model". Attention weights are on one
            in the whole model, each a share of what a query looks at; a distance to the head's
            mean or a norm of its keys is a scale of the head.
    """

    name: str
    score: Callable[..., Tensor]
    reads: tuple[str, ...]
    options: Mapping[str, Any]
    sinks: int
    recent: int
    queries: int | str | None
    decode: str
    compares: str

    @property
    def sees_queries(self) -> bool:
        """Whether the scores depend on queries."""
        return not QUERY_INPUTS.isdisjoint(self.reads)

    def window(self, options: Mapping[str, Any]) -> int | None:
        """How many of the last queries it reads with these options; None for all."""
        if "q" not in self.reads:
            return 0
        if isinstance(self.queries, str):
            return int({**self.options, **options}[self.queries])
        return self.queries

    @torch.no_grad()
    def __call__(
        self,
        *,
        k: Tensor,
        v: Tensor | None = None,
        pos: Tensor | None = None,
        q: Tensor | None = None,
        future_q: Tensor | None = None,
        future_k: Tensor | None = None,
        rope: Rope | None = None,
        gram: Tensor | None = None,
        valid: Tensor | None = None,
        **options: object,
    ) -> Tensor:
        """Score the entries of one or many layers and sequences.

        Padding is taken out before scoring and does not influence any score. So is an entry with a
        NaN or infinity in its key or value, if the method reads them; it scores NaN, which ranks
        below all numbers. A query that has one counts as zero.

        Args:
            k: [..., H, T, Dk] post-RoPE keys. Always needed, for its shape.
            v: [..., H, T, Dv] values.
            pos: integers [T], [..., T] or [..., H, T]; by default 0 .. T - 1.
            q: [..., H G, Tq, Dk] post-RoPE queries of the last Tq slots.
            future_q: [..., H G, F, Dk] post-RoPE queries of the F tokens after the cache.
            future_k: [..., H, F, Dk] their keys.
            rope: the model's rotary embedding.
            gram: [..., H G, Dv, Dv] of ``rope.output_grams``; leading dimensions broadcast.
            valid: bool, shaped like pos; by default the entries with pos >= 0.
            **options: of the method.

        Returns:
            [..., H, T] float32, NaN at padding.

        Raises:
            ValueError: something that the method reads is missing.
        """
        heads, slots = k.shape[-3:-1]
        rows, lead = k.shape[:-1], k.shape[:-3]
        if pos is None:
            pos = torch.arange(slots, device=k.device)
        pos = _per_head(pos, rows)
        valid = pos >= 0 if valid is None else _per_head(valid, rows)
        row = torch.arange(math.prod(lead) * heads).reshape(*lead, heads)
        given: dict[str, Any] = {"k": k, "v": v, "pos": pos, "q": q, "row": row, "rope": rope}
        given |= {"future_q": future_q, "future_k": future_k}
        given["gram"] = None if gram is None else gram.expand(*lead, *gram.shape[-3:])

        def sequences(x: Tensor) -> Tensor:
            """The leading dimensions as one: [S, ...]."""
            return x.reshape(math.prod(lead), *x.shape[len(lead) :])

        shared, inputs = {}, {}
        for name in self.reads:
            x = given[name]
            if x is None:
                kind = "the model's" if name in ("rope", "gram") else "a tensor"
                raise ValueError(f"{name}: got None, expected {kind}, because {self.name} reads it")
            if name == "rope":
                shared[name] = x
            else:
                inputs[name] = sequences(x)
        for name in {"k", "v"}.intersection(inputs):
            valid = valid & given[name].isfinite().all(dim=-1)
        for name in QUERY_INPUTS.intersection(inputs):
            finite = inputs[name].isfinite().all(dim=-1, keepdim=True)
            inputs[name] = inputs[name].masked_fill(~finite, 0)
        scores = [
            self._score_sequence(
                {name: x[s] for name, x in inputs.items()}, slot_valid, {**shared, **options}
            )
            for s, slot_valid in enumerate(sequences(valid))
        ]
        return torch.stack(scores).reshape(rows) if scores else k.new_empty(rows).float()

    def _score_sequence(
        self, inputs: dict[str, Tensor], valid: Tensor, options: dict[str, object]
    ) -> Tensor:
        """Scores [H, T] of one sequence, whose heads hold the slots valid [H, T].

        Heads that hold different slots are scored one by one, each with its own group's queries.
        """
        heads, slots = valid.shape
        scores = torch.full(valid.shape, torch.nan, dtype=torch.float32, device=valid.device)
        if bool((valid == valid[:1]).all()):
            groups = [slice(0, heads)]
        else:
            groups = [slice(h, h + 1) for h in range(heads)]
        for group in groups:
            slot = valid[group.start].nonzero().squeeze(-1)
            if len(slot) > 0:
                dense = {
                    name: _without_padding(name, _of_heads(x, group, heads), slot, slots)
                    for name, x in inputs.items()
                }
                scores[group, slot] = self.score(**dense, **options).to(torch.float32)
        return scores


def _per_head(x: Tensor, rows: torch.Size) -> Tensor:
    """x [T], [..., T] or [..., H, T] as [..., H, T]."""
    if x.dim() < len(rows):
        x = x.unsqueeze(-2)
    return x.expand(rows)


def _of_heads(x: Tensor, group: slice, heads: int) -> Tensor:
    """The part of x [H, ...] or [H G, ...] that belongs to some of the KV heads."""
    each = x.shape[0] // heads
    return x[group.start * each : group.stop * each]


def _without_padding(name: str, x: Tensor, slot: Tensor, slots: int) -> Tensor:
    """One input of a sequence of ``slots`` slots at the slots given."""
    if name in ("k", "v", "pos"):
        return x[:, slot]
    if name == "q":
        first = slots - x.shape[1]
        return x[:, slot[slot >= first] - first]
    return x


def method(
    name: str,
    *,
    sinks: int = 0,
    recent: int = 0,
    queries: int | str | None = None,
    decode: str = "again",
    compares: str = "row",
) -> Callable[[Callable[..., Tensor]], Method]:
    """Register a scoring function; the arguments without a default are the tensors it reads.

    The function scores one sequence of one layer without padding: k [H, n, Dk], v [H, n, Dv],
    pos [H, n], q [H G, Tq, Dk] (the last Tq entries' queries), future_q [H G, F, Dk],
    future_k [H, F, Dk], gram [H G, Dv, Dv], row [H] (a number for each row of the cache), rope
    -> [H, n], higher = keep.
    Arguments with a default are the method's options. The other arguments are those of ``Method``.
    """

    def register(score: Callable[..., Tensor]) -> Method:
        parameters = inspect.signature(score).parameters.values()
        reads = tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)
        options = {
            p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty
        }
        made = Method(name, score, reads, options, sinks, recent, queries, decode, compares)
        object.__setattr__(made, "__doc__", inspect.getdoc(score))
        _REGISTRY[name] = made
        return made

    return register


def methods() -> dict[str, Method]:
    """All methods by name."""
    return dict(sorted(_REGISTRY.items()))


def pin_first(scores: Tensor, count: int) -> Tensor:
    """Scores [..., n] with the first ``count`` at +inf."""
    first = torch.arange(scores.shape[-1], device=scores.device) < count
    return scores.masked_fill(first, torch.inf)


def pin_last(scores: Tensor, count: int) -> Tensor:
    """Scores [..., n] with the last ``count`` above all others, ascending: a budget too small for
    all of them keeps the newest."""
    n = scores.shape[-1]
    count = min(count, n)
    others = scores[..., : n - count]
    finite = others.masked_fill(~others.isfinite(), 0.0)
    top = finite.amax(dim=-1, keepdim=True) if n > count else scores.new_zeros(1)
    step = torch.arange(1, count + 1, device=scores.device, dtype=scores.dtype)
    pins = (top + step).expand(*scores.shape[:-1], count)
    return torch.cat([others, pins], dim=-1)
