"""Reading what transformers passes around: arguments of forwards and cache updates, queries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def uses(cache: object, kwargs: dict[str, Any]) -> bool:
    """Whether a forward uses this cache; the argument is renamed in transformers 5.24."""
    return any(kwargs.get(name) is cache for name in ("past_key_values", "cache"))


def cache_argument(model: nn.Module, cache: object) -> dict[str, Any]:
    """The keyword argument that hands a cache to this model's forward or `generate`.

    transformers 5.24 renamed `past_key_values` to `cache`.
    """
    parameters = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in parameters else "past_key_values": cache}


def tokens_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The new tokens of a model's forward: ids `[B, q]` or embeddings `[B, q, D]`."""
    if len(args) > 1:
        raise TypeError("pass attention_mask and the cache by keyword while the cache is attached")
    for tokens in (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")):
        if isinstance(tokens, Tensor):
            return tokens
    raise TypeError("the forward has neither input_ids nor inputs_embeds")


def rows_differ(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the rows of a batch are at different positions, by what a model passes to a cache.

    That is `kwargs={"position_ids": …}` in transformers 5, a dict with RoPE's `cos` before.
    """
    for extra in (*args, *kwargs.values()):
        if not isinstance(extra, dict):
            continue
        for rows, dims in ((extra.get("position_ids"), 2), (extra.get("cos"), 3)):
            if isinstance(rows, Tensor) and rows.dim() == dims and rows.shape[0] > 1:
                return not bool((rows == rows[:1]).all())
    return False


def capture_queries(
    model: nn.Module, cache: object, keep: Callable[[int, Tensor], None], window: int
) -> list[Any]:
    """Hands the post-RoPE queries of every prompt's last `window` tokens to `keep`.

    Args:
        model: with attention modules that have `q_proj` and `layer_idx`, as Llama and its kin.
        cache: only forwards with this cache are listened to.
        keep: called with the layer and `[B, query heads, <= window, D]`.

    Returns:
        Handles of the hooks, to be removed.
    """
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ValueError(f"query_window is {window!r}, expected an int of at least 1")
    attentions = [m for m in model.modules() if hasattr(m, "q_proj") and hasattr(m, "layer_idx")]
    if not attentions:
        raise ValueError(
            "query_window needs attention modules with q_proj and layer_idx; "
            f"{type(model).__name__} has none"
        )

    def capture(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        if not uses(cache, kwargs) or hidden.shape[1] == 1:
            return
        cos, sin = (part[:, None, -window:] for part in kwargs["position_embeddings"])
        queries = attention.q_proj(hidden[:, -window:]).unflatten(-1, (-1, attention.head_dim))
        if hasattr(attention, "q_norm"):
            queries = attention.q_norm(queries)
        queries = queries.transpose(1, 2)
        first, second = queries.chunk(2, dim=-1)
        keep(attention.layer_idx, queries * cos + torch.cat([-second, first], dim=-1) * sin)

    return [m.register_forward_pre_hook(capture, with_kwargs=True) for m in attentions]
