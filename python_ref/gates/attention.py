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

from python_ref.attention_call import AttentionCall
from python_ref.attention_interface import Plain, replaced_attention


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


@contextmanager
def fading(model: Any, log_beta: Tensor) -> Iterator[None]:
    """Within the block, tokens of the model's attention fade by log_beta [L, B, H, T]."""

    def attend(call: AttentionCall, value: Tensor, plain: Plain) -> Tensor:
        return fading_output(call, value, log_beta[call.layer])

    with replaced_attention(model, attend):
        yield
