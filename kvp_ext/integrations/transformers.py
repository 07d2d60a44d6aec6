"""`KVPCache`: a Hugging Face cache that evicts and then really is smaller.

    cache = KVPCache(model.config, budget=256, policy="smollm2-135m-instruct")
    model.generate(**inputs, past_key_values=cache)

Positions stay logical: `get_seq_length()` counts every token seen, so position ids and RoPE go on
as if nothing had been evicted, and storage slot `s` stands in for mask column
`s + seen - slots`. Only evicted entries sit in front of the first slot's column, so the causal
mask that transformers builds from these two numbers is right as long as rows are equally long.
Padding, and rows that an allocator made unequal, need masks of their own: `KVPCache.attach`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

try:
    from transformers import PretrainedConfig
    from transformers.cache_utils import Cache
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "KVPCache needs the package transformers, which is not installed.\n"
        "Install it:\n"
        '    pip install "kvp-ext[transformers]"',
        name=error.name,
    ) from error

from python_ref.allocators import Allocator, allocators, learned_shares

from .._backends import check_name
from .._call import check_count
from ..active import active_policy, load_policy
from ..gates import RetentionGate
from ..policy import Policy
from .hf_buffers import Extent
from .hf_entries import Entries
from .hf_eviction import Rule, Storage, evict_storage
from .hf_hooks import (
    as_attention_takes,
    cache_argument,
    calls,
    check_has_queries,
    project,
    rows_differ,
    tokens_of,
    uses,
)
from .hf_layers import KVPLayer, layers_for
from .hf_scorers import PolicyRanking, Ranking, Scorer, method_scorer, ranking_of

__all__ = ["KVPCache", "Scorer", "cache_argument", "method_scorer"]

#: Attention implementations that take a mask for every head.
MASKED_ATTENTION = ("eager", "sdpa", "flex_attention")


class KVPCache(Cache):
    """Cache for `generate` and plain forwards that keeps the `budget` most useful entries.

    The forward of a prompt (more than one token) sees everything. Right before the next forward
    builds its mask, all layers are evicted in one `evict_` call and the storage shrinks to what
    was kept and `headroom`. Decoded tokens are appended; a further prompt is followed by a
    further eviction, and with `interval` decoding is too. Sliding-window layers stay as
    transformers made them.

    Args:
        config: the model's configuration.
        budget: entries kept in every row, sinks and recent included. An int of at least 1, or
            a float in (0, 1]: that fraction of the tokens which the sequence has seen, rounded
            half up, at least one. At 0.25 a prompt of 512 leaves 128, and 512 more leave 256.
        policy: a `Policy`, or the name or path of one; by default the active one
            (`kvp_ext.use`) at the time of this call.
        scorer: what ranks instead of a policy: the name of a method of `python_ref.methods`,
            `method_scorer(name, **options)`, a retention gate (`kvp_ext.gates.load_gate`), or a
            `Scorer` of your own.
        allocator: how the rows of a sequence share their budgets: an allocator of
            `python_ref.allocators` or its name, or "share" for the shares that came with the
            policy. All but "uniform" leave rows of different length, `budget` on average, and need
            `attach`.
        sinks, recent: first and last entries of a row that are always kept.
        mode: "per_head", or "union": all heads of a layer keep the same tokens, and have to get
            the same budget.
        interval: during decoding too, evict whenever rows exceed the budget by this many tokens;
            every entry is scored once, where the ranking allows. `None`: decoded tokens stay
            until after the next prompt.
        headroom: tokens that can be appended after an eviction without a new allocation; by
            default `interval`, or 128. Past it, buffers grow by half.
        when: "prompt": evict before the forward that follows a prompt, and at `interval`;
            "manual": only in `evict`.
        backend: of `evict_`; by default that of the cache's device.

    Attributes:
        evictions: how many evictions have changed the cache.
        last_eviction_ms: wall time of the last of them: scoring, selection, compaction and
            shrinking, in milliseconds; `None` before.
        kept_counts: int32 `[L, B, H]`, entries that the last of them kept; `None` before.

    Raises:
        TypeError, ValueError: naming the argument, what it was and what was expected; also for
            a model whose cache has other kinds of layers.
        RuntimeError: neither a policy nor a scorer is given, and none is active.
    """

    layers: list[Any]

    def __init__(
        self,
        config: PretrainedConfig,
        budget: int | float,
        *,
        policy: Policy | str | None = None,
        scorer: Scorer | Ranking | RetentionGate | str | None = None,
        allocator: Allocator | str = "uniform",
        sinks: int = 4,
        recent: int = 16,
        mode: Literal["per_head", "union"] = "per_head",
        interval: int | None = None,
        headroom: int | None = None,
        when: Literal["prompt", "manual"] = "prompt",
        backend: str | None = None,
    ) -> None:
        _check_options(budget, policy, scorer, allocator, mode, interval, headroom, when)
        check_count("sinks", sinks)
        check_count("recent", recent)
        check_name(backend)
        if not isinstance(config, PretrainedConfig):
            raise TypeError(
                f"config is {type(config).__name__}, expected a model's configuration: model.config"
            )
        if scorer is None and not isinstance(policy, Policy):
            policy = active_policy() if policy is None else load_policy(policy)
        if isinstance(policy, Policy):
            _check_geometry(policy, config)
        chosen = allocators().get(allocator) if isinstance(allocator, str) else allocator
        self._config = config
        self._options: dict[str, Any] = {
            "budget": budget,
            "policy": policy,
            "scorer": scorer,
            "allocator": allocator,
            "sinks": sinks,
            "recent": recent,
            "mode": mode,
            "interval": interval,
            "headroom": headroom,
            "when": when,
            "backend": backend,
        }
        self._ranking: Ranking
        if isinstance(policy, Policy):
            self._ranking = PolicyRanking(policy, backend)
        else:
            assert scorer is not None
            self._ranking = ranking_of(scorer)
        self._allocator = chosen or _shares_of(policy)
        self._attached = False
        self._extent = Extent(seen=0, headroom=headroom or interval or 128)
        self._entries = Entries(self._extent)
        super().__init__(layers=layers_for(config, self._extent, self._entries.rows[0]))
        self._start()

    def _start(self) -> None:
        kinds = [isinstance(layer, KVPLayer) for layer in self.layers]
        self._evicting: dict[int, KVPLayer] = {i: self.layers[i] for i, k in enumerate(kinds) if k}
        self._sliding: dict[int, Any] = {i: self.layers[i] for i, k in enumerate(kinds) if not k}
        keeps = self._ranking.once and (
            self._options["interval"] is not None or self._ranking.hidden
        )
        for layer in self._evicting.values():
            layer.keeps_scores = keeps
        self._incoming: dict[int, _Incoming] = {}  # of the layers of the coming forward
        self._checked: set[int] = set()  # layers whose queries are known to be computed right
        self._queries: dict[int, Tensor] = {}  # since the last eviction
        self._query_window: int | None = self._ranking.queries
        self._prompt_pending = False
        self._kept = 0  # entries of the longest average row after the last eviction
        self.evictions = 0
        self.last_eviction_ms: float | None = None
        self.kept_counts: Tensor | None = None

    # ---- what a model calls ----------------------------------------------------------------

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends a layer's keys and values.

        A forward counts once its last layer is here; one that fails before leaves no trace.
        """
        query_length = key_states.shape[2]
        if layer_idx == 0:
            self._check_inputs(key_states, args, kwargs)
            self._begin()
        keys, values = self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        if layer_idx in self._incoming:
            self._take_in(layer_idx, key_states)
        if layer_idx == len(self.layers) - 1:
            self._entries.append(query_length, key_states)
            self._keep_queries()
            self._prompt_pending = self._prompt_pending or query_length > 1
        return keys, values

    def get_seq_length(self, layer_idx: int = 0, *_: Any) -> int:
        """Tokens seen, evicted ones and padding included: where the next positions start."""
        return self._extent.seen

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int) -> tuple[int, int]:
        """Key length and first mask column of the coming forward; evicts first if it is due."""
        self._begin()
        sizes: tuple[int, int] = self.layers[layer_idx].get_mask_sizes(query_length)
        return sizes

    def _begin(self) -> None:
        """Before a forward looks at the cache; may be called more than once for the same one."""
        for i, layer in self._sliding.items():
            if layer.get_seq_length() != self._extent.seen:
                raise RuntimeError(
                    f"layer {i} (sliding window) has seen {layer.get_seq_length()} tokens and the "
                    f"cache {self._extent.seen}: a forward was interrupted; use a fresh KVPCache"
                )
        if self._entries.incoming is None:
            self._check_may_stand_alone()
        if self._eviction_due():
            self.evict()

    def _check_may_stand_alone(self) -> None:
        """Refuses a forward that this cache is not attached to, if it has to be."""
        remedy = "run inside `with cache.attach(model):`"
        if self._entries.mask is not None:
            raise RuntimeError(
                "this cache has seen padding, so it has to see the attention mask of every "
                f"forward: {remedy}"
            )
        if self._allocator.name != "uniform" or self._entries.ragged:
            raise RuntimeError(
                f"the allocator {self._allocator.name!r} leaves rows of different length, "
                f"which need a mask for each head: {remedy}"
            )
        if self._ranking.attaches:
            raise RuntimeError(
                f"scorer {self._options['scorer']!r} reads more of the model than keys and "
                f"values: {remedy}"
            )

    def _check_inputs(
        self, key_states: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if torch.is_grad_enabled() and key_states.requires_grad:
            raise RuntimeError(
                "KVPCache stores no gradients: run the forward under torch.no_grad() or "
                "torch.inference_mode()"
            )
        if self._entries.incoming is None and rows_differ(args, kwargs):
            raise RuntimeError(
                "the sequences of this batch are at different positions, so some of them are "
                "padded: run inside `with cache.attach(model):`, which tells the cache what is "
                "padding"
            )

    # ---- eviction --------------------------------------------------------------------------

    def _eviction_due(self) -> bool:
        """Decides, before a forward, whether to evict: the only place."""
        if self._options["when"] != "prompt":
            return False
        if self._prompt_pending:
            return True
        interval = self._options["interval"]
        if interval is None or self._entries.fresh == 0:
            return False
        stored = self._kept + self._entries.fresh
        return bool(stored >= self._rule().average(self._extent.seen) + interval)

    def _rule(self) -> Rule:
        names = ("budget", "policy", "sinks", "recent", "mode", "backend")
        return Rule(allocator=self._allocator, **{name: self._options[name] for name in names})

    def _storage(self) -> Storage:
        return Storage(self._evicting, len(self.layers), self._entries, self._queries)

    def evict(self) -> bool:
        """Evicts now. False if no row holds more than its budget, and nothing changed.

        Raises:
            TypeError, ValueError, RuntimeError: as `evict_`; the cache is as before.
        """
        if self._entries.next_pos is None:
            return False
        started = time.perf_counter()
        lengths = evict_storage(self._storage(), self._ranking, self._rule(), self.evictions)
        self._prompt_pending = False
        if lengths is None:
            return False
        self._queries.clear()
        self.kept_counts = lengths
        self._kept = int(lengths[list(self._evicting)].float().mean((0, 2)).max().ceil())
        self.last_eviction_ms = (time.perf_counter() - started) * 1e3
        self.evictions += 1
        return True

    # ---- what the model is seen to do --------------------------------------------------------

    @contextmanager
    def attach(
        self, model: nn.Module, *, query_window: int | Literal["all"] | None = None
    ) -> Iterator[KVPCache]:
        """Lets the cache see the forwards of a model that use it, and give its layers masks.

        Needed, in every turn, for padded batches, for allocators that leave rows of different
        length, and for scorers that read queries, weights or hidden states:

            with cache.attach(model):
                model.generate(**padded_batch, past_key_values=cache)

        Padding gets position -1, is never kept and takes no share of a budget; the other tokens
        of its sequence count positions from 0, as `generate` does. Where rows have padding or
        different lengths, every full-attention layer is handed a mask of what it stores. The hooks
        are on this `model` object only and are gone when the block ends, however it ends; forwards
        with other caches are not touched.

        Args:
            model: its forward takes `attention_mask` and the cache by keyword.
            query_window: how many of the last post-RoPE queries since an eviction to keep, or
                "all"; by default as many as the scorer is known to read.

        Raises:
            RuntimeError: the cache is already attached.
            ValueError: `query_window` is below 1, or the model has no attention modules to take
                queries from. In a forward: a mask that is not `[B, seen + q]`, that hides or
                shows tokens which an eviction has judged, or masks wanted for an attention not in
                `MASKED_ATTENTION`.
        """
        if self._attached:
            raise RuntimeError("this cache is already attached to a model")
        window = self._ranking.queries if query_window is None else _window(query_window)
        hooks: list[Any] = []
        try:
            if window != 0:
                check_has_queries(model)
            self._ranking.see(model)
            self._query_window = window
            hooks.append(model.register_forward_pre_hook(self._see_forward, with_kwargs=True))
            hooks.extend(calls(model, self, self._see_attention))
            self._attached = True
            yield self
        finally:
            for hook in hooks:
                hook.remove()
            self._attached = False
            self._entries.incoming = None
            self._incoming.clear()

    def _see_forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not uses(self, kwargs):
            return
        tokens = tokens_of(args, kwargs)
        self._incoming.clear()
        self._entries.announce(kwargs.get("attention_mask"), tokens)
        self._begin()
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if self._entries.needs_masks() and attention not in MASKED_ATTENTION:
            raise ValueError(
                f"attn_implementation is {attention!r}, expected one of {MASKED_ATTENTION} for "
                "padded batches and rows of different length"
            )

    def _see_attention(self, attention: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Notes what a layer is about to do, and gives it a mask if it needs one."""
        layer = self._evicting.get(attention.layer_idx)
        if layer is None or self._entries.incoming is None:
            return None
        hidden = kwargs["hidden_states"]
        queries, key, numbers = None, None, None
        if self._query_window != 0:
            queries, key = project(attention, kwargs, self._query_window)
        if self._ranking.hidden:
            numbers = self._ranking.observe(attention.layer_idx, hidden)
        self._incoming[attention.layer_idx] = _Incoming(queries, key, numbers)
        if not self._entries.needs_masks():
            return None
        mask = layer.rows.mask(self._entries.incoming)
        return {"attention_mask": as_attention_takes(mask, attention, hidden)}

    def _take_in(self, layer_idx: int, key_states: Tensor) -> None:
        """Checks and stores what a layer was seen to do, once its keys are here."""
        seen = self._incoming[layer_idx]
        if seen.key is not None and layer_idx not in self._checked:
            if not torch.allclose(seen.key, key_states[:, :, -1:], rtol=1e-2, atol=1e-2):
                raise ValueError(
                    f"queries of layer {layer_idx} cannot be had: this model's rotary embedding or "
                    "projection is not like Llama's, by which they would be computed"
                )
            self._checked.add(layer_idx)
        if seen.numbers is not None:
            self._evicting[layer_idx].note(seen.numbers)

    def _keep_queries(self) -> None:
        """After a complete forward: its queries behind those of the forwards before."""
        found = {i: seen.queries for i, seen in self._incoming.items()}
        self._incoming.clear()
        if any(queries is None for queries in found.values()) or not found:
            self._queries.clear()  # they are of the last tokens, or of none
            return
        for i, queries in found.items():
            assert queries is not None
            if i in self._queries:
                queries = torch.cat([self._queries[i], queries], dim=2)
            window = self._query_window
            self._queries[i] = queries if window is None else queries[:, :, -window:]

    # ---- inspection ------------------------------------------------------------------------

    @property
    def positions(self) -> Tensor:
        """int32 `[L, B, H, slots]` logical position of every stored entry.

        `slots` is that of the longest row. -1 at padding, holes and ends of shorter rows, and in
        layers that are not evicted. Empty before the first forward.
        """
        if self._entries.next_pos is None:
            return torch.empty(len(self.layers), 0, 0, 0, dtype=torch.int32)
        pos = self._storage().positions()
        slots = max(p.shape[-1] for p in pos)
        out = pos[0].new_full((len(self.layers), *pos[0].shape[:2], slots), -1)
        for i, p in zip(self._evicting, pos, strict=True):
            out[i, ..., : p.shape[-1]] = p
        return out

    @property
    def lengths(self) -> Tensor:
        """int32 `[L, B, H]`: valid entries of every row."""
        return (self.positions >= 0).sum(-1, dtype=torch.int32)

    def memory_bytes(self) -> int:
        """Bytes allocated for keys, values, positions and kept scores, unused headroom included."""
        held = [rows.pos for rows in self._entries.rows]
        for layer in self._evicting.values():
            held += [layer.key_buffer, layer.value_buffer, layer.score_buffer]
        for sliding in self._sliding.values():
            held += [sliding.keys, sliding.values]
        return sum(t.untyped_storage().nbytes() for t in held if t is not None)

    # ---- whole-cache operations ------------------------------------------------------------

    def fork(self, **changes: Any) -> KVPCache:
        """A copy of the cache as it stands, with some constructor arguments changed.

        So one prefill serves many comparisons:

            model(**inputs, past_key_values=cache)
            for scorer in scorers:
                twin = cache.fork(scorer=scorer)
                twin.evict()

        A new `policy` replaces a scorer and the other way round. Queries are carried over, and
        the copy is not attached.

        Raises:
            TypeError, ValueError, RuntimeError: as the constructor.
        """
        unknown = sorted(set(changes) - set(self._options))
        if unknown:
            raise TypeError(f"fork got {unknown}, expected any of {sorted(self._options)}")
        rival = {"policy": "scorer", "scorer": "policy"}
        dropped = {rival[name]: None for name in changes if name in rival}
        twin = KVPCache(self._config, **{**self._options, **dropped, **changes})
        same = rival.keys().isdisjoint(changes)
        if same:
            twin._ranking = self._ranking
        elif twin._ranking.hidden and self._extent.seen:
            raise ValueError(
                f"scorer is {changes['scorer']!r}, which reads hidden states as they come; "
                "expected a cache that has seen no token, or one that was made with it"
            )
        twin._extent.seen = self._extent.seen
        twin._entries = self._entries.copy_to(twin._extent)
        rows = twin._entries.rows
        for n, (i, layer) in enumerate(self._evicting.items()):
            twin._evicting[i].rows = rows[n % len(rows)]
            layer.copy_to(twin._evicting[i], with_scores=same)
        for i, sliding in self._sliding.items():
            twin.layers[i] = twin._sliding[i] = copy.deepcopy(sliding)
        twin._queries = dict(self._queries)
        twin._prompt_pending = self._prompt_pending
        twin._kept = self._kept
        twin.evictions = self.evictions
        twin.last_eviction_ms = self.last_eviction_ms
        twin.kept_counts = None if self.kept_counts is None else self.kept_counts.clone()
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> KVPCache:
        """A fork: the weights of the policy are shared."""
        return self.fork()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replaces the batch by its rows `beam_idx`, as beam search does."""
        self._select_rows(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows `indices` of the batch."""
        self._select_rows(lambda t: t[indices.to(t.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row of the batch `repeats` times."""
        self._select_rows(lambda t: t.repeat_interleave(repeats, dim=0))

    def _select_rows(self, select: Callable[[Tensor], Tensor]) -> None:
        for layer in self._evicting.values():
            layer.select_rows(select)
        for sliding in self._sliding.values():
            if sliding.keys is not None:
                sliding.keys, sliding.values = select(sliding.keys), select(sliding.values)
        self._entries.select_rows(select)
        self._queries = {i: select(queries) for i, queries in self._queries.items()}
        if self.kept_counts is not None:
            self.kept_counts = select(self.kept_counts.transpose(0, 1)).transpose(0, 1)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest tokens.

        Args:
            tokens_to_remove: minus the number of tokens; a positive number is the count to keep,
                as in transformers 4.

        Raises:
            ValueError: more tokens than came after the last eviction, which has judged the
                others; or the model has sliding-window layers.
        """
        count = -tokens_to_remove
        if tokens_to_remove > 0:
            count = max(0, self._extent.seen - tokens_to_remove)
        if count and self._sliding:
            raise ValueError("crop cannot take back tokens of sliding-window layers")
        self._entries.crop(count)
        for layer in self._evicting.values():
            layer.scored = min(layer.scored, layer.rows.slots)
        if count:
            self._queries = {i: q[:, :, :-count] for i, q in self._queries.items()}

    def reset(self) -> None:
        """Empties the cache and gives its memory back."""
        self._extent.seen = 0
        self._entries = Entries(self._extent)
        self.layers = layers_for(self._config, self._extent, self._entries.rows[0])
        self._start()


@dataclass(frozen=True)
class _Incoming:
    """What a layer was seen to do in the coming forward, where that is wanted.

    Attributes:
        queries: `[B, query heads, W, D]` of its last tokens.
        key: `[B, KV heads, 1, D]` of the last one, to be checked.
        numbers: `[B, KV heads, q]` that its entries get.
    """

    queries: Tensor | None
    key: Tensor | None
    numbers: Tensor | None


def _window(query_window: int | str) -> int | None:
    """How many queries to keep; `None` for all."""
    if query_window == "all":
        return None
    if isinstance(query_window, bool) or not isinstance(query_window, int) or query_window < 1:
        raise ValueError(
            f"query_window is {query_window!r}, expected an int of at least 1, or 'all'"
        )
    return query_window


def _shares_of(policy: Policy | str | None) -> Allocator:
    """The allocator that a calibrated policy carries."""
    table = policy.provenance.get("shares") if isinstance(policy, Policy) else None
    if table is None:
        raise ValueError(
            "allocator is 'share', which needs a policy that carries shares: one made by "
            "kvp-ext calibrate"
        )
    return learned_shares(table)


def _check_geometry(policy: Policy, config: PretrainedConfig) -> None:
    """Refuses a policy made for another model before a prompt is read, not after."""
    text = config.get_text_config()
    query_heads = getattr(text, "num_attention_heads", None)
    model = {
        "layers": getattr(text, "num_hidden_layers", None),
        "kv_heads": getattr(text, "num_key_value_heads", None) or query_heads,
        "head_dim_k": getattr(text, "head_dim", None),
    }
    for name, size in model.items():
        if size is not None and getattr(policy, name) != size:
            raise ValueError(
                f"policy has {name} {getattr(policy, name)}, expected {size} as in the model's "
                "configuration"
            )


def _check_options(
    budget: int | float,
    policy: Policy | str | None,
    scorer: Scorer | Ranking | RetentionGate | str | None,
    allocator: Allocator | str,
    mode: str,
    interval: int | None,
    headroom: int | None,
    when: str,
) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise TypeError(
            f"budget is {budget!r}, expected an int (entries) or a float (fraction of the prompt); "
            "an allocator shares it between layers and heads"
        )
    if not (budget >= 1 if isinstance(budget, int) else 0 < budget <= 1):
        raise ValueError(f"budget is {budget}, expected an int of at least 1 or a float in (0, 1]")
    if policy is not None and scorer is not None:
        raise ValueError("both policy and scorer are given, expected one of them")
    if not isinstance(allocator, Allocator) and allocator not in (*allocators(), "share"):
        known = ", ".join([*allocators(), "share"])
        raise ValueError(f"allocator is {allocator!r}, expected one of {known}, or an Allocator")
    if mode not in ("per_head", "union"):
        raise ValueError(
            f"mode is {mode!r}, expected 'per_head' or 'union'; a budget shared by the whole model "
            "is allocator='model'"
        )
    rule = allocators().get(allocator) if isinstance(allocator, str) else allocator
    if mode == "union" and rule is not None and rule.compares:
        raise ValueError(
            f"mode is 'union' and in the allocator {rule.name!r} heads compete for their budgets, "
            "expected mode='per_head'"
        )
    for name, count in (("interval", interval), ("headroom", headroom)):
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or count < 1
        ):
            raise ValueError(f"{name} is {count!r}, expected an int of at least 1")
    if when not in ("prompt", "manual"):
        raise ValueError(f"when is {when!r}, expected 'prompt' or 'manual'")
    if interval is not None and when == "manual":
        raise ValueError(f"interval is {interval} and when is 'manual', expected one of them")
