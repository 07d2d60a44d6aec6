"""Attention in which tokens fade: the model that a gate is trained through.

    A[t, i] = softmax_i(logits[t, i] + (t - i) log beta_i),   i <= t

The model itself does not change: a context switches its attention, as `python_ref.decoder` does to
watch it. What a backward pass needs of a T x T matrix is computed again, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from python_ref.attention_call import AttentionCall

_ATTENTION = "kvp_retention_gated"
_log_beta: Tensor | None = None


def fading_output(call: AttentionCall, value: Tensor, log_beta: Tensor) -> Tensor:
    """A layer's output [B, T, H G, Dv] where tokens fade; differentiable, in O(T) memory.

    Args:
        call: of a whole sequence: as many queries as keys.
        value: [B, H, T, Dv].
        log_beta: [B, H, T], at most 0.

    Returns:
        In the dtype of value.
    """
    queries, keys = call.query.shape[2], call.key.shape[2]
    if queries != keys:
        raise ValueError(
            f"call: got {queries} queries and {keys} keys, expected a whole sequence without a "
            "cache"
        )

    def block(query: Tensor, key: Tensor, value: Tensor, log_beta: Tensor, first: int) -> Tensor:
        part = AttentionCall(
            call.layer, query, key, call.mask, call.scale, call.softcap, call.sinks
        )
        _, logits = next(part.logit_blocks(first, min(first + call.block_rows, queries)))
        count, seen = logits.shape[-2:]
        t = torch.arange(first, first + count, device=logits.device)
        age = t[:, None] - torch.arange(seen, device=logits.device)
        decay = age * log_beta[:, :, None, None, :seen].to(logits.dtype)
        weights = part.weights(logits + decay)
        return torch.einsum("bhgti,bhid->bhgtd", weights, value[..., :seen, :].to(weights.dtype))

    parts = [
        checkpoint(
            block,
            *(call.query, call.key, value, log_beta, first),
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for first in range(0, queries, call.block_rows)
    ]
    together = torch.cat(parts, dim=3).to(value.dtype)
    return together.flatten(1, 2).transpose(1, 2).contiguous()


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if kwargs.get("position_bias") is not None:
        raise ValueError(
            f"{type(module).__name__}: its attention adds a position bias to the logits, "
            "which is not supported"
        )
    if _log_beta is None:
        raise RuntimeError(f"the attention {_ATTENTION!r} is for forwards within `fading` only")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(module.layer_idx, query, key, mask, scale, softcap, s_aux)
    return fading_output(call, value, _log_beta[module.layer_idx]), None


AttentionInterface.register(_ATTENTION, _attention)
AttentionMaskInterface.register(_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


@contextmanager
def fading(model: Any, log_beta: Tensor) -> Iterator[None]:
    """Within the block, tokens of the model's attention fade by log_beta [L, B, H, T]."""
    global _log_beta
    before = model.config._attn_implementation
    model.config._attn_implementation = _ATTENTION
    _log_beta = log_beta
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _log_beta = None
