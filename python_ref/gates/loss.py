"""What a model with fading tokens loses, and how much it still holds.

Everything runs in blocks: of tokens where the vocabulary is concerned, of queries where every pair
of tokens is. Nothing of T x vocabulary or T x T x heads is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]

BLOCK_TOKENS = 64
BLOCK_ELEMENTS = 1 << 19


def retained(log_beta: Tensor) -> Tensor:
    """How many entries a sequence still holds, each by what is left of it, [B, T].

        n_t = sum over l, h, i <= t of beta_{l,h,i}^(t - i)

    Args:
        log_beta: [L, B, H, T].
    """
    layers, batch, heads, tokens = log_beta.shape
    rows = max(1, BLOCK_ELEMENTS // (layers * batch * heads * tokens))

    def block(log_beta: Tensor, first: int) -> Tensor:
        last = min(first + rows, tokens)
        t = torch.arange(first, last, device=log_beta.device)
        age = t[:, None] - torch.arange(last, device=log_beta.device)
        left = (age.clamp(min=0) * log_beta[..., None, :last]).exp()
        return left.mul(age >= 0).sum(dim=(0, 2, 4))

    parts = [
        checkpoint(block, log_beta, first, use_reentrant=False, preserve_rng_state=False)
        for first in range(0, tokens, rows)
    ]
    return torch.cat(parts, dim=1)


def capacity_loss(held: Tensor, capacity: float, rows: int) -> Tensor:
    """How far a sequence holds more than its capacity, as a share of the most it could.

        mean over t of max(0, n_t - M R) / max(t R - M R, 1),   t counted from 1

    Args:
        held: n [B, T], see `retained`.
        capacity: M, entries of a row on average.
        rows: R = L H.
    """
    t = torch.arange(1, held.shape[1] + 1, device=held.device, dtype=held.dtype)
    most = (t * rows - capacity * rows).clamp(min=1)
    return ((held - capacity * rows).clamp(min=0) / most).mean()


class Distilled(NamedTuple):
    """Scalars, means over tokens. Only the loss is differentiable.

    Attributes:
        loss: half of kl and half of cross_entropy.
        kl: KL(full || fading) of the next token's distribution.
        cross_entropy, full_cross_entropy: of the next token, with and without fading.
    """

    loss: Tensor
    kl: Tensor
    cross_entropy: Tensor
    full_cross_entropy: Tensor


def distillation(fading: Tensor, full: Tensor, targets: Tensor, head: Head) -> Distilled:
    """How far a model with fading tokens is from the model as it is, and from the text.

    Args:
        fading, full: last hidden states [B, T, model_dim] with and without fading; a gradient
            goes to `fading` alone.
        targets: the next tokens, int64 [B, T].
        head: makes logits [N, vocabulary] of hidden states [N, model_dim]; it gets no gradient.
    """
    inputs = (fading.flatten(0, 1), full.flatten(0, 1), targets.flatten(), head)
    outputs = _Distillation.apply(*inputs)  # type: ignore[no-untyped-call]
    return Distilled(*outputs)


class _Distillation(torch.autograd.Function):
    """The gradient is computed with the loss, since keeping logits for later is what costs."""

    @staticmethod
    def forward(
        ctx: Any, fading: Tensor, full: Tensor, targets: Tensor, head: Head
    ) -> tuple[Tensor, ...]:
        dtype = torch.promote_types(fading.dtype, torch.float32)
        kl, own, other = (fading.new_zeros((), dtype=dtype) for _ in range(3))
        gradients = []
        for first in range(0, len(targets), BLOCK_TOKENS):
            block = slice(first, first + BLOCK_TOKENS)
            target = targets[block]
            full_log = head(full[block]).to(dtype).log_softmax(dim=-1)
            with torch.enable_grad():
                x = fading[block].detach().requires_grad_()
                log = head(x).to(dtype).log_softmax(dim=-1)
                block_kl = F.kl_div(log, full_log, reduction="sum", log_target=True)
                block_own = F.nll_loss(log, target, reduction="sum")
                (gradient,) = torch.autograd.grad((block_kl + block_own) / 2, x)
            gradients.append(gradient / len(targets))
            kl += block_kl.detach()
            own += block_own.detach()
            other += F.nll_loss(full_log, target, reduction="sum")
        kl, own, other = (total / len(targets) for total in (kl, own, other))
        ctx.save_for_backward(torch.cat(gradients))
        ctx.mark_non_differentiable(kl, own, other)
        return (kl + own) / 2, kl, own, other

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None, None, None


@torch.no_grad()
def output_head(model: Any) -> Head:
    """The map from a model's last hidden states to its logits.

    Raises:
        ValueError: the model's logits are not its output embedding of them, soft-capped or not.
    """
    embedding = model.get_output_embeddings()
    config = model.config.get_text_config(decoder=True)
    cap = getattr(config, "final_logit_softcapping", None)

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = embedding(hidden)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    probe = torch.tensor([[0, 1]], device=model.device)
    expected = model(probe, use_cache=False).logits
    got = (
        None
        if embedding is None
        else head(model.base_model(probe, use_cache=False).last_hidden_state)
    )
    if got is None or not torch.allclose(got, expected, rtol=1e-2, atol=1e-2):
        raise ValueError(
            f"model: the logits of {type(model).__name__} are not its output embedding of its last "
            "hidden states, expected a model whose head is that alone"
        )
    return head
