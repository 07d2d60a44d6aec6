"""What ranks the entries of a `KVPCache`: a policy, a named method, a retention gate or a function.

A ranking gives every entry a number. Where that number never changes (`once`) it can stay with its
entry, so that only new entries are looked at; otherwise all of a layer is looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from python_ref.methods import methods
from python_ref.rope import output_grams, rope_of

from ..eviction import score
from ..gates import RetentionGate
from ..gates import score as gate_score
from ..policy import Policy


class Scorer(Protocol):
    """Ranks the entries of one layer; the highest scores are kept."""

    def __call__(self, k: Tensor, v: Tensor, pos: Tensor, queries: Tensor | None) -> Tensor:
        """Scores every entry.

        Args:
            k, v: `[B, H, T, D]` of the cache's dtype, keys post-RoPE.
            pos: int32 `[B, H, T]` logical positions, -1 at padding.
            queries: `[B, H_q, W, D]` post-RoPE queries of the last `W` entries, if the cache was
                attached with `query_window`; else `None`. Scaled so that q . k / sqrt(D) is the
                model's logit.

        Returns:
            `[B, H, T]` scores; what stands at padding does not matter.
        """


@dataclass(frozen=True)
class LayerEntries:
    """Entries of one layer, all of them or the newest.

    Attributes:
        layer: its index.
        k, v, pos, queries: as a `Scorer` gets them.
        fresh: tokens since the last eviction.
    """

    layer: int
    k: Tensor
    v: Tensor
    pos: Tensor
    queries: Tensor | None
    fresh: int


class Ranking:
    """What a `KVPCache` asks of whatever ranks its entries.

    Attributes:
        once: an entry's number never changes.
        queries: how many trailing queries it reads; `None` all since the last eviction.
        hidden: it reads hidden states, as they come: see `observe`.
        attaches: it reads something of the model that only `KVPCache.attach` supplies.
    """

    once = False
    queries: int | None = 0
    hidden = False
    attaches = False

    def see(self, model: nn.Module) -> None:
        """Takes what it needs of the model's weights; called by `KVPCache.attach`."""

    def observe(self, layer: int, hidden: Tensor) -> Tensor:
        """The numbers `[B, H, q]` of new entries, from the attention's input `[B, q, channels]`."""
        raise NotImplementedError

    def numbers(self, layers: Sequence[LayerEntries], evictions: int) -> list[Tensor]:
        """The numbers `[B, H, T]` of the entries of each layer.

        Args:
            evictions: how many there were before.
        """
        raise NotImplementedError

    def scores(self, numbers: Tensor, pos: Tensor, now: Tensor) -> Tensor:
        """What the numbers `[B, H, T]` of entries at `pos` mean once `now` `[B]` tokens came."""
        return numbers


class FunctionRanking(Ranking):
    """A `Scorer` of the user's."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def numbers(self, layers: Sequence[LayerEntries], evictions: int) -> list[Tensor]:
        """One layer after another."""
        return [self._layer(entries) for entries in layers]

    def _layer(self, entries: LayerEntries) -> Tensor:
        scores = self.scorer(entries.k, entries.v, entries.pos, entries.queries)
        if not isinstance(scores, Tensor) or scores.shape != entries.pos.shape:
            got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"scorer returned {got} for layer {entries.layer}, expected a tensor [B, H, T] = "
                f"{list(entries.pos.shape)}"
            )
        return scores.to(torch.float32, copy=True)


class PolicyRanking(Ranking):
    """A policy, where its scores are wanted before the eviction."""

    once = True

    def __init__(self, policy: Policy, backend: str | None) -> None:
        self.policy = policy
        self.backend = backend

    def numbers(self, layers: Sequence[LayerEntries], evictions: int) -> list[Tensor]:
        """All layers in one call."""
        k, v, pos = ([None] * self.policy.layers for _ in range(3))
        for entries in layers:
            at = entries.layer
            k[at], v[at], pos[at] = entries.k, entries.v, entries.pos.contiguous()  # type: ignore[call-overload]
        found = score(k, v, pos, policy=self.policy, backend=self.backend)
        return [found[entries.layer, ..., : entries.pos.shape[-1]] for entries in layers]


class MethodRanking(Ranking):
    """A method of `python_ref.methods` by its name."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.method = methods()[name]
        self.options = dict(options)
        self.once = self.method.decode == "once"
        self.queries = self.method.window(self.options)
        self.attaches = not {"q", "rope", "gram"}.isdisjoint(self.method.reads)
        self._weights: dict[str, Any] = {}

    def see(self, model: nn.Module) -> None:
        """The rotary embedding, and what the output projections make of values."""
        for name, take in (("rope", rope_of), ("gram", output_grams)):
            if name in self.method.reads and name not in self._weights:
                self._weights[name] = take(model)

    def numbers(self, layers: Sequence[LayerEntries], evictions: int) -> list[Tensor]:
        """One layer after another."""
        return [self._layer(entries, evictions) for entries in layers]

    def _layer(self, entries: LayerEntries, evictions: int) -> Tensor:
        options = dict(self.options)
        if "seed" in self.method.options:  # other noise in every layer, every time
            seed = options.get("seed", self.method.options["seed"])
            options["seed"] = seed + 7919 * evictions + entries.layer
        weights = dict(self._weights)
        if "gram" in weights:
            weights["gram"] = weights["gram"][entries.layer]
        return self.method(
            k=entries.k,
            v=entries.v,
            pos=entries.pos,
            q=self._queries(entries, options),
            **weights,
            **options,
        )

    def _queries(self, entries: LayerEntries, options: dict[str, Any]) -> Tensor | None:
        """As many as the method reads, of the tokens since the last eviction."""
        if self.queries == 0:
            return None
        wanted = entries.fresh if self.queries is None else min(self.queries, entries.fresh)
        have = 0 if entries.queries is None else entries.queries.shape[2]
        if have < wanted:
            raise ValueError(
                f"scorer {self.method.name!r} reads the queries of the last {wanted} tokens, this "
                f"cache has kept those of {have}: run the forward inside `with cache.attach(model)`"
                " with this scorer, or with query_window='all'"
            )
        if isinstance(self.method.queries, str):  # the name of the option that says how many
            options[self.method.queries] = wanted
        return None if entries.queries is None else entries.queries[:, :, have - wanted :]


class GateRanking(Ranking):
    """A retention gate: log beta of a token stays with it, what is left of it falls with time."""

    once = hidden = attaches = True

    def __init__(self, gate: RetentionGate) -> None:
        self.gate = gate

    def see(self, model: nn.Module) -> None:
        """Checks that the gate is for such a model."""
        config: Any = model.config
        text = config.get_text_config()
        sizes = {
            "layers": text.num_hidden_layers,
            "kv_heads": text.num_key_value_heads,
            "model_dim": text.hidden_size,
        }
        for name, size in sizes.items():
            if getattr(self.gate, name) != size:
                raise ValueError(
                    f"scorer is a gate for {name} {getattr(self.gate, name)}, expected {size} as "
                    "in the model's configuration"
                )
        self.gate.to(next(model.parameters()).device)

    @torch.no_grad()
    def observe(self, layer: int, hidden: Tensor) -> Tensor:
        """Log beta of new tokens."""
        return self.gate.layer_log_beta(layer, hidden).float()

    def scores(self, numbers: Tensor, pos: Tensor, now: Tensor) -> Tensor:
        """What will be left at the next token."""
        return gate_score(numbers[None], pos[None], now - 1)[0]


def method_scorer(name: str, **options: Any) -> Ranking:
    """A method of `python_ref.methods` as the `scorer` of a `KVPCache`.

    Raises:
        ValueError: an unknown name or option, or a method that knows the future.
    """
    if name not in methods():
        raise ValueError(f"scorer is {name!r}, expected one of {', '.join(methods())}")
    method = methods()[name]
    if not method.decode:
        raise ValueError(f"scorer is {name!r}, expected a method that does not read the future")
    if unknown := sorted(set(options) - set(method.options)):
        raise ValueError(
            f"scorer {name!r} got options {unknown}, expected any of {sorted(method.options)}"
        )
    return MethodRanking(name, options)


def ranking_of(scorer: Scorer | Ranking | RetentionGate | str) -> Ranking:
    """What the `scorer` argument of a `KVPCache` stands for."""
    if isinstance(scorer, Ranking):
        return scorer
    if isinstance(scorer, str):
        return method_scorer(scorer)
    if isinstance(scorer, RetentionGate):
        return GateRanking(scorer)
    if not callable(scorer):
        raise TypeError(
            f"scorer is {scorer!r}, expected the name of a method, method_scorer(…), a retention "
            "gate or a callable"
        )
    return FunctionRanking(scorer)
