"""`KVPCache`: a Hugging Face cache that evicts after every prompt and then really is smaller.

    cache = KVPCache(model.config, budget=256, policy="smollm2-135m-instruct")
    model.generate(**inputs, past_key_values=cache)

Positions stay logical: `get_seq_length()` counts every token seen, so position ids and RoPE go on
as if nothing had been evicted, and storage slot `s` stands in for mask column
`s + seen - slots`. Only evicted entries sit in front of the first slot's column, so the causal
mask that transformers builds from these two numbers is right. Padding is the one thing a cache
is not told about; `KVPCache.attach` is there for padded batches.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

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

from python_ref.budgets import budget_from_ratio

from ..active import active_policy, load_policy
from ..eviction import evict_
from ..policy import Policy
from .hf_entries import Entries
from .hf_hooks import cache_argument, capture_queries, rows_differ, tokens_of, uses
from .hf_layers import Extent, KVPLayer, layers_for, new_buffer, query_length_of

__all__ = ["KVPCache", "Scorer", "cache_argument"]

#: Attention implementations whose masks are tested with padding.
PADDED_ATTENTION = ("eager", "sdpa")


class Scorer(Protocol):
    """Ranks the entries of one layer; the highest scores are kept."""

    def __call__(self, k: Tensor, v: Tensor, pos: Tensor, queries: Tensor | None) -> Tensor:
        """Scores every entry.

        Args:
            k, v: `[B, H, T, D]` of the cache's dtype, keys post-RoPE.
            pos: int32 `[B, H, T]` logical positions, -1 at padding.
            queries: `[B, H_q, W, D]` post-RoPE queries of the last `W` entries, if the cache was
                attached with `query_window`; else `None`.

        Returns:
            `[B, H, T]` scores; what stands at padding does not matter.
        """


class KVPCache(Cache):
    """Cache for `generate` and plain forwards that keeps the `budget` most useful entries.

    The forward of a prompt (more than one token) sees everything. Right before the next forward
    builds its mask, all layers are evicted in one `evict_` call and the storage shrinks to what
    was kept and `headroom`. Decoded tokens are appended; a further prompt is followed by a
    further eviction. Sliding-window layers stay as transformers made them.

    Args:
        config: the model's configuration.
        budget: entries kept in every row, sinks and recent included. An int of at least 1, or
            a float in (0, 1]: that fraction of the tokens which the sequence has seen, rounded
            half up, at least one. At 0.25 a prompt of 512 leaves 128, and 512 more leave 256.
        policy: a `Policy`, or the name or path of one; by default the active one
            (`kvp_ext.use`) at the time of this call.
        scorer: a `Scorer` instead of a policy, for baselines.
        sinks, recent: first and last entries of a row that are always kept.
        mode: "per_head", or "union": all heads of a layer keep the same tokens.
        headroom: tokens that can be appended after an eviction without a new allocation. Past
            it, buffers grow by half.
        when: "prompt": evict before the forward that follows a prompt; "manual": only in
            `evict`.
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
        scorer: Scorer | None = None,
        sinks: int = 4,
        recent: int = 16,
        mode: Literal["per_head", "union"] = "per_head",
        headroom: int = 128,
        when: Literal["prompt", "manual"] = "prompt",
        backend: str | None = None,
    ) -> None:
        _check_options(budget, policy, scorer, mode, headroom, when)
        if not isinstance(config, PretrainedConfig):
            raise TypeError(
                f"config is {type(config).__name__}, expected a model's configuration: model.config"
            )
        if scorer is None and not isinstance(policy, Policy):
            policy = active_policy() if policy is None else load_policy(policy)
        if isinstance(policy, Policy):
            _check_geometry(policy, config)
        self._config = config
        self._options: dict[str, Any] = {
            "budget": budget,
            "policy": policy,
            "scorer": scorer,
            "sinks": sinks,
            "recent": recent,
            "mode": mode,
            "headroom": headroom,
            "when": when,
            "backend": backend,
        }
        self._attached = False
        self._extent = Extent(slots=0, seen=0, headroom=headroom)
        super().__init__(layers=layers_for(config, self._extent))
        self._start()

    def _start(self) -> None:
        kinds = [isinstance(layer, KVPLayer) for layer in self.layers]
        self._evicting: dict[int, KVPLayer] = {i: self.layers[i] for i, k in enumerate(kinds) if k}
        self._sliding: dict[int, Any] = {i: self.layers[i] for i, k in enumerate(kinds) if not k}
        self._entries = Entries(self._extent)
        self._queries: dict[int, Tensor] = {}  # of the last forward, if it was a prompt
        self._prompt_pending = False
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
            self._begin(query_length)
        keys, values = self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        if layer_idx == len(self.layers) - 1:
            self._entries.append(query_length, key_states)
            self._prompt_pending = self._prompt_pending or query_length > 1
        return keys, values

    def get_seq_length(self, layer_idx: int = 0, *_: Any) -> int:
        """Tokens seen, evicted ones and padding included: where the next positions start."""
        return self._extent.seen

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int) -> tuple[int, int]:
        """Key length and first mask column of the coming forward; evicts first if it is due."""
        self._begin(query_length_of(query_length))
        sizes: tuple[int, int] = self.layers[layer_idx].get_mask_sizes(query_length)
        return sizes

    def _begin(self, query_length: int) -> None:
        """Before a forward looks at the cache; may be called more than once for the same one."""
        for i, layer in self._sliding.items():
            if layer.get_seq_length() != self._extent.seen:
                raise RuntimeError(
                    f"layer {i} (sliding window) has seen {layer.get_seq_length()} tokens and the "
                    f"cache {self._extent.seen}: a forward was interrupted; use a fresh KVPCache"
                )
        if self._eviction_due(query_length):
            self.evict()
        if self._entries.incoming is None and self._entries.mask is not None:
            raise RuntimeError(
                "this cache has seen padding, so it has to see the attention mask of every "
                "forward: run inside `with cache.attach(model):`"
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

    def _eviction_due(self, query_length: int) -> bool:
        """Decides, before a forward of `query_length` tokens, whether to evict: the only place."""
        return self._prompt_pending and self._options["when"] == "prompt"

    def evict(self) -> bool:
        """Evicts now. False if no row holds more than its budget, and nothing changed.

        Raises:
            TypeError, ValueError, RuntimeError: as `evict_`; the cache is as before.
        """
        if self._extent.slots == 0:
            return False
        budgets = self._budgets()
        lengths = self._entries.valid().sum(-1).tolist()
        if all(n <= b for n, b in zip(lengths, budgets, strict=True)):
            self._prompt_pending = False
            return False

        started = time.perf_counter()
        slots = max(min(n, b) for n, b in zip(lengths, budgets, strict=True))
        options, pos = self._options, self._entries.used()
        keys, values, scores = self._per_layer(), self._per_layer(), self._per_layer()
        for i, layer in self._evicting.items():
            keys[i], values[i] = layer.used()
        rows = self._rows()
        for i, row_pos in zip(self._evicting, pos.expand(*rows, -1), strict=True):
            scores[i] = self._score(i, row_pos)
        new_pos = new_buffer(pos, (*rows, slots + options["headroom"]), -1)
        result = evict_(
            keys,
            values,
            pos[0, :, 0] if len(pos) == 1 else self._per_layer(pos),
            _budget_argument(budgets, len(self.layers), rows[2], options["mode"], pos.device),
            policy=options["policy"],
            sinks=options["sinks"],
            recent=options["recent"],
            mode=options["mode"],
            scores=None if options["scorer"] is None else scores,
            backend=options["backend"],
        )
        new_pos[..., :slots] = result.pos[list(self._evicting), ..., :slots]
        self._entries.replace(new_pos, slots)
        for layer in self._evicting.values():
            layer.shrink()
        self._prompt_pending = False
        self._queries.clear()
        self.kept_counts = result.lengths
        if pos.is_cuda:
            torch.cuda.synchronize(pos.device)
        self.last_eviction_ms = (time.perf_counter() - started) * 1e3
        self.evictions += 1
        return True

    def _budgets(self) -> list[int]:
        """Entries to keep of each sequence."""
        assert self._entries.next_pos is not None
        seen = self._entries.next_pos.tolist()
        budget = self._options["budget"]
        if isinstance(budget, int):
            return [budget] * len(seen)
        return [budget_from_ratio(n, keep_ratio=budget) for n in seen]

    def _score(self, layer_idx: int, pos: Tensor) -> Tensor | None:
        if self._options["scorer"] is None:
            return None
        keys, values = self._evicting[layer_idx].used()
        scores = self._options["scorer"](keys, values, pos, self._queries.get(layer_idx))
        if not isinstance(scores, Tensor) or scores.shape != pos.shape:
            got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"scorer returned {got} for layer {layer_idx}, expected a tensor [B, H, T] = "
                f"{list(pos.shape)}"
            )
        return scores.to(torch.float32, copy=True)

    def _rows(self) -> tuple[int, int, int]:
        """Layers that are evicted, sequences, KV heads."""
        keys, _ = next(iter(self._evicting.values())).used()
        return len(self._evicting), keys.shape[0], keys.shape[1]

    def _per_layer(self, tensors: Tensor | None = None) -> list[Tensor | None]:
        """One place for every layer of the model; `None` where nothing is evicted."""
        places: list[Tensor | None] = [None] * len(self.layers)
        if tensors is not None:
            for i, tensor in zip(self._evicting, tensors, strict=True):
                places[i] = tensor
        return places

    # ---- padding ---------------------------------------------------------------------------

    @contextmanager
    def attach(self, model: nn.Module, *, query_window: int | None = None) -> Iterator[KVPCache]:
        """Lets the cache see the attention mask of the model's forwards that use it.

        Needed for padded batches, in every turn, and for scorers that use queries:

            with cache.attach(model):
                model.generate(**padded_batch, past_key_values=cache)

        Padding gets position -1, is never kept and takes no share of a budget; the other tokens
        of its sequence count positions from 0, as `generate` does. The model is handed a mask of
        what is stored. The hooks are on this `model` object only and are gone when the block
        ends, however it ends; forwards with other caches are not touched.

        Args:
            model: its forward takes `attention_mask` and the cache by keyword.
            query_window: how many of a prompt's last post-RoPE queries to keep for the scorer.

        Raises:
            RuntimeError: the cache is already attached.
            ValueError: `query_window` is below 1, or the model has no attention modules to take
                queries from. In a forward: a mask that is not `[B, seen + q]`, that hides or
                shows tokens which an eviction has judged, or padding together with sliding-window
                layers or an attention other than eager and sdpa.
        """
        if self._attached:
            raise RuntimeError("this cache is already attached to a model")
        hooks = []
        try:
            if query_window is not None:
                hooks += capture_queries(model, self, self._keep_queries, query_window)
            hooks.append(model.register_forward_pre_hook(self._see_forward, with_kwargs=True))
            self._attached = True
            yield self
        finally:
            for hook in hooks:
                hook.remove()
            self._attached = False
            self._entries.incoming = None

    def _see_forward(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not uses(self, kwargs):
            return None
        tokens = tokens_of(args, kwargs)
        told = kwargs.get("attention_mask")
        self._entries.announce(told, tokens)
        self._begin(tokens.shape[1])
        self._queries.clear()
        mask = self._entries.attention_mask()
        if mask is None:
            return None
        self._check_padding_is_supported(model)
        return args, {**kwargs, "attention_mask": mask if told is None else mask.to(told.dtype)}

    def _keep_queries(self, layer_idx: int, queries: Tensor) -> None:
        self._queries[layer_idx] = queries

    def _check_padding_is_supported(self, model: nn.Module) -> None:
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if attention not in PADDED_ATTENTION:
            raise ValueError(
                f"attn_implementation is {attention!r}, expected one of {PADDED_ATTENTION} for a "
                "padded batch"
            )
        if self._sliding:
            raise ValueError(
                "this batch is padded and the model has sliding-window layers: one attention mask "
                "cannot fit both kinds of layers after an eviction; run the sequences one by one"
            )

    # ---- inspection ------------------------------------------------------------------------

    @property
    def positions(self) -> Tensor:
        """int32 `[L, B, H, slots]` logical position of every stored entry.

        -1 at padding, holes of shorter rows and layers that are not evicted. Empty before the
        first forward.
        """
        if self._entries.pos is None:
            return torch.empty(len(self.layers), 0, 0, 0, dtype=torch.int32)
        pos, rows = self._entries.used(), self._rows()
        out = pos.new_full((len(self.layers), *rows[1:], pos.shape[-1]), -1)
        out[list(self._evicting)] = pos.expand(*rows, -1)
        return out

    @property
    def lengths(self) -> Tensor:
        """int32 `[L, B, H]`: valid entries of every row."""
        return (self.positions >= 0).sum(-1, dtype=torch.int32)

    def memory_bytes(self) -> int:
        """Bytes allocated for keys, values and positions, unused headroom included."""
        held = [self._entries.pos]
        for layer in self._evicting.values():
            held += [layer.key_buffer, layer.value_buffer]
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
        twin._extent.slots, twin._extent.seen = self._extent.slots, self._extent.seen
        for i, layer in self._evicting.items():
            layer.copy_to(twin._evicting[i])
        for i, sliding in self._sliding.items():
            twin.layers[i] = twin._sliding[i] = copy.deepcopy(sliding)
        twin._entries = self._entries.copy_to(twin._extent)
        twin._queries = dict(self._queries)
        twin._prompt_pending = self._prompt_pending
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
        self._queries.clear()

    def reset(self) -> None:
        """Empties the cache and gives its memory back."""
        self._extent.slots = self._extent.seen = 0
        self.layers = layers_for(self._config, self._extent)
        self._start()


def _budget_argument(
    budgets: list[int], layers: int, heads: int, mode: str, device: torch.device
) -> int | Tensor:
    """One budget per sequence in the form that `evict_` takes for the mode."""
    if len(set(budgets)) == 1:
        return budgets[0]
    per_layer = torch.tensor(budgets, dtype=torch.int32, device=device).expand(layers, -1)
    return per_layer if mode == "union" else per_layer[..., None].expand(-1, -1, heads)


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
    scorer: Scorer | None,
    mode: str,
    headroom: int,
    when: str,
) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise TypeError(
            f"budget is {budget!r}, expected an int (entries) or a float (fraction of the prompt); "
            "budgets that differ between heads would need a mask per head, which models do not take"
        )
    if not (budget >= 1 if isinstance(budget, int) else 0 < budget <= 1):
        raise ValueError(f"budget is {budget}, expected an int of at least 1 or a float in (0, 1]")
    if policy is not None and scorer is not None:
        raise ValueError("both policy and scorer are given, expected one of them")
    if scorer is not None and not callable(scorer):
        raise TypeError(f"scorer is {scorer!r}, expected a callable")
    if mode not in ("per_head", "union"):
        raise ValueError(
            f"mode is {mode!r}, expected 'per_head' or 'union': a budget shared by the model "
            "leaves rows of different length, which would need a mask per head"
        )
    if isinstance(headroom, bool) or not isinstance(headroom, int) or headroom < 1:
        raise ValueError(f"headroom is {headroom!r}, expected an int of at least 1")
    if when not in ("prompt", "manual"):
        raise ValueError(f"when is {when!r}, expected 'prompt' or 'manual'")
