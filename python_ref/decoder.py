"""Running a frozen transformers decoder: a prefill, and branches on a cache that may be evicted.

Works with transformers 4.5x and 5.x. Every branch starts from the same cache, which is not
modified: continuing copies it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# Called by every attention layer with its index, query [B, Hq, Tq, D] and key [B, H, Tk, D], both
# after RoPE; the queries belong to the last Tq keys.
Observer = Callable[[int, Tensor, Tensor], None]

_ATTENTION = "kvp_observed_sdpa"
_observer: Observer | None = None


@torch.no_grad()
def prefill(
    model: PreTrainedModel, ids: Sequence[int], *, observer: Observer | None = None
) -> tuple[Tensor, Tensor]:
    """Keys after RoPE and raw values of a context, each [L, H, T, D]."""
    cache: Any = DynamicCache()
    tokens = torch.tensor([list(ids)], device=model.device)
    # The decoder alone: logits over the vocabulary would cost a fifth more and are not needed.
    network = model.base_model
    with _observed(model, observer):
        network(tokens, **{_cache_argument(network): cache}, use_cache=True)
    k, v = (torch.cat(tensors) for tensors in zip(*_layers(cache), strict=True))
    return k, v


@torch.no_grad()
def continue_from(
    model: PreTrainedModel,
    k: Tensor,
    v: Tensor,
    position: int,
    branches: Sequence[Sequence[int]],
    *,
    logits: bool = True,
    observer: Observer | None = None,
) -> Tensor | None:
    """Runs branches, each directly after a cache k [L, H, T, Dk], v [L, H, T, Dv].

    `position` is the logical position of the first branch token: the length of the context
    before any eviction. Returns logits [branch, longest branch, vocabulary] if wanted; rows past
    the end of a branch are meaningless, in the logits and in what `observer` sees.
    """
    count, longest = len(branches), max(map(len, branches))
    tokens = torch.zeros(count, longest, dtype=torch.long)
    for row, ids in zip(tokens, branches, strict=True):
        row[: len(ids)] = torch.tensor(list(ids))
    cache: Any = DynamicCache()
    for layer in range(k.shape[0]):
        one = [x[layer].to(model.device, model.dtype) for x in (k, v)]
        cache.update(*(x.expand(count, *x.shape) for x in one), layer)
    positions = torch.arange(position, position + longest, device=model.device)
    network = model if logits else model.base_model
    with _observed(model, observer):
        output = network(
            tokens.to(model.device),
            position_ids=positions[None].expand(count, -1),
            use_cache=True,
            **{_cache_argument(network): cache},
        )
    return output.logits if logits else None


def _cache_argument(network: torch.nn.Module) -> str:
    """transformers 5.24 renamed `past_key_values` to `cache`."""
    arguments = inspect.signature(network.forward).parameters
    return "cache" if "cache" in arguments else "past_key_values"


def _layers(cache: Any) -> Iterator[tuple[Tensor, Tensor]]:
    if hasattr(cache, "layers"):  # since transformers 4.54
        yield from ((layer.keys, layer.values) for layer in cache.layers)
    else:
        yield from zip(cache.key_cache, cache.value_cache, strict=True)


def _observed_sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    if _observer is not None:
        _observer(module.layer_idx, query, key)
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


AttentionInterface.register(_ATTENTION, _observed_sdpa)
try:  # since transformers 4.53 masks are made by a registry of their own
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    AttentionMaskInterface.register(_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
except ImportError:
    pass


@contextmanager
def _observed(model: PreTrainedModel, observer: Observer | None) -> Iterator[None]:
    global _observer
    if observer is None:
        yield
        return
    before = model.config._attn_implementation
    model.config._attn_implementation = _ATTENTION
    _observer = observer
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _observer = None
