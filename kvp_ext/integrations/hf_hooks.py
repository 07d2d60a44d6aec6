"""Reading what transformers passes around, and handing attention layers masks of their own.

Everything here is forward hooks on one model object, which their handles take away again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from python_ref.gates.hidden import attention_modules

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


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


def calls(
    model: nn.Module, cache: object, see: Callable[[Any, dict[str, Any]], dict[str, Any] | None]
) -> Iterator[Any]:
    """Hooks that show `see` every attention module about to run with this cache.

    Args:
        see: gets the module and its keyword arguments, `hidden_states` always among them; returns
            arguments to change, or `None`.

    Yields:
        Handles of the hooks, to be removed.
    """

    def before(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not uses(cache, kwargs):
            return None
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        changes = see(attention, {**kwargs, "hidden_states": hidden})
        return None if changes is None else (args, {**kwargs, **changes})

    for attention in attention_modules(model):
        yield attention.register_forward_pre_hook(before, with_kwargs=True)


def as_attention_takes(mask: Tensor, attention: Any, hidden: Tensor) -> Tensor | BlockMask:
    """A mask `[B, 1 or H, q, keys]`, True where visible, in the form that a module takes.

    Args:
        hidden: for its dtype.
    """
    implementation = attention.config._attn_implementation
    if mask.shape[1] > 1 or implementation == "flex_attention":
        group = attention.config.num_attention_heads // mask.shape[1]
        mask = mask.repeat_interleave(group, dim=1)
    if implementation == "sdpa":
        return mask
    if implementation == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask  # not before torch 2.5

        batch, heads, queries, keys = mask.shape
        return create_block_mask(
            lambda b, h, q, k: mask[b, h, q, k], batch, heads, queries, keys, device=mask.device
        )
    lowest = torch.finfo(hidden.dtype).min
    return torch.zeros(mask.shape, dtype=hidden.dtype, device=mask.device).masked_fill(
        ~mask, lowest
    )


def check_has_queries(model: nn.Module) -> None:
    """Refuses a model whose attention modules have no projection that `project` knows."""
    modules = attention_modules(model)
    if not modules or not all(hasattr(m, "q_proj") or hasattr(m, "qkv_proj") for m in modules):
        raise ValueError(
            "queries are taken from attention modules with layer_idx and q_proj or qkv_proj; "
            f"{type(model).__name__} has none"
        )


def project(attention: Any, kwargs: dict[str, Any], last: int | None) -> tuple[Tensor, Tensor]:
    """Post-RoPE queries of a module's last tokens, and the key of the last one.

    Queries are scaled so that q . k / sqrt(D) is the logit before any soft cap. The key is there to
    be compared with the one that the cache gets: a model with another RoPE must not go unnoticed.

    Args:
        kwargs: of the module's forward.
        last: how many queries; `None` for all.

    Returns:
        `[B, query heads, W, D]` and `[B, KV heads, 1, D]`.
    """
    hidden = kwargs["hidden_states"]
    hidden = hidden if last is None else hidden[:, -last:]
    dim = attention.head_dim
    if hasattr(attention, "qkv_proj"):
        heads = attention.config.num_attention_heads
        together = attention.qkv_proj(hidden)
        queries = together[..., : heads * dim]
        kv_heads = (together.shape[-1] // dim - heads) // 2
        key = together[:, -1:, heads * dim : (heads + kv_heads) * dim]
    else:
        queries, key = attention.q_proj(hidden), attention.k_proj(hidden[:, -1:])
    queries, key = queries.unflatten(-1, (-1, dim)), key.unflatten(-1, (-1, dim))
    if hasattr(attention, "q_norm"):
        queries, key = attention.q_norm(queries), attention.k_norm(key)
    cos, sin = kwargs["position_embeddings"]
    scale = getattr(attention, "scaling", dim**-0.5) * dim**0.5
    return _rotate(queries.transpose(1, 2), cos, sin) * scale, _rotate(
        key.transpose(1, 2), cos, sin
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on the first R channels of x `[B, H, W, D]`; cos and sin are `[B, T, R]`, T >= W."""
    cos, sin = (part[:, None, -x.shape[2] :] for part in (cos, sin))
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1)
