"""The retention gate: from a token's hidden state, how fast its worth fades in every KV head.

A token i of head h keeps beta_i^(t - i) of its weight at time t. The last layer of the gate is
shared by all layers of the model, which makes beta comparable across layers and heads: one budget
can be divided over the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from python_ref.positions import expand_positions

WIDTH = 512
BIAS = 18.0


class RetentionGate(nn.Module):
    """log beta of every token and KV head, from the input of the attention blocks.

        u = W3 silu(W2 silu(W1 x + b1) + b2) + b3,   log beta = log sigmoid(u)

    W1 and W2 are a layer's own; W3 and b3 are shared by all layers.

    Attributes:
        layers, kv_heads, model_dim, width: the geometry.
        name: of the gate, for messages.
        model_fingerprint: of the model it was trained for, as in `ModelInfo`; empty: not known.
        provenance: how it was trained (JSON values).

    Source: arXiv 2605.09649.
    """

    first_weight: Tensor
    first_bias: Tensor
    second_weight: Tensor
    second_bias: Tensor
    last_weight: Tensor
    last_bias: Tensor

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        model_dim: int,
        *,
        width: int = WIDTH,
        bias: float = BIAS,
        name: str = "",
        model_fingerprint: str = "",
        provenance: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """An untrained gate.

        Args:
            layers, kv_heads, model_dim: of the model; model_dim is that of its hidden states.
            width: of both hidden layers.
            bias: b3 at the start; 18, as in the paper, makes every beta almost 1.
            name, model_fingerprint, provenance: see the class.
            generator: of the initial weights.

        Raises:
            ValueError: a size below 1.
        """
        super().__init__()
        sizes = {"layers": layers, "kv_heads": kv_heads, "model_dim": model_dim, "width": width}
        for key, size in sizes.items():
            if size < 1:
                raise ValueError(f"{key}: got {size}, expected at least 1")
        self.layers, self.kv_heads, self.model_dim, self.width = sizes.values()
        self.name, self.model_fingerprint = name, model_fingerprint
        self.provenance: dict[str, Any] = dict(provenance or {})
        for key, shape in gate_tensor_shapes(layers, kv_heads, model_dim, width).items():
            inputs = model_dim if key.startswith("first") else width
            limit = 1 / math.sqrt(inputs)  # as nn.Linear
            weights = torch.empty(shape).uniform_(-limit, limit, generator=generator)
            self.register_parameter(key.replace(".", "_"), nn.Parameter(weights))
        nn.init.constant_(self.last_bias, bias)

    def log_beta(self, hidden: Tensor) -> Tensor:
        """Log beta [L, B, H, T] fp32, from hidden [L, B, T, model_dim] of any float dtype.

        Raises:
            ValueError: hidden of another shape.
        """
        if hidden.dim() != 4 or (hidden.shape[0], hidden.shape[3]) != (self.layers, self.model_dim):
            raise ValueError(
                f"hidden: got shape {list(hidden.shape)}, expected [{self.layers}, B, T, "
                f"{self.model_dim}], as the gate's model has it"
            )
        return torch.stack([self.layer_log_beta(layer, x) for layer, x in enumerate(hidden)])

    def layer_log_beta(self, layer: int, hidden: Tensor) -> Tensor:
        """Log beta [B, H, T] of one layer, from hidden [B, T, model_dim].

        Raises:
            ValueError: no such layer, or hidden of another shape.
        """
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer: got {layer}, expected 0 to {self.layers - 1}")
        if hidden.dim() != 3 or hidden.shape[2] != self.model_dim:
            raise ValueError(
                f"hidden: got shape {list(hidden.shape)}, expected [B, T, {self.model_dim}], as "
                "the gate's model has it"
            )
        x = hidden.to(self.first_weight.dtype)
        x = F.silu(F.linear(x, self.first_weight[layer], self.first_bias[layer]))
        x = F.silu(F.linear(x, self.second_weight[layer], self.second_bias[layer]))
        return F.logsigmoid(F.linear(x, self.last_weight, self.last_bias)).transpose(1, 2)

    def extra_repr(self) -> str:
        """For `print`."""
        return (
            f"{self.name!r}, layers={self.layers}, kv_heads={self.kv_heads}, "
            f"model_dim={self.model_dim}, width={self.width}"
        )


def gate_tensor_shapes(
    layers: int, kv_heads: int, model_dim: int, width: int
) -> dict[str, tuple[int, ...]]:
    """The gate's tensors by their names in a file. Weights are [out, in]."""
    return {
        "first.weight": (layers, width, model_dim),
        "first.bias": (layers, width),
        "second.weight": (layers, width, width),
        "second.bias": (layers, width),
        "last.weight": (kv_heads, width),
        "last.bias": (kv_heads,),
    }


def score(log_beta: Tensor, pos: Tensor, now: Tensor | int) -> Tensor:
    """Scores of cached tokens at a time: what is left of each at the next one, as a logarithm.

        s_i = (now + 1 - pos_i) log beta_i

    Higher is kept. Scores of all layers and heads can be compared with one another (mode "model"
    of `kvp_ext.evict_`). They change with time, so tokens are scored again at every eviction; what
    stays with a token is its log beta.

    Args:
        log_beta: float [L, B, H, T].
        pos: integers [T], [B, T] or [L, B, H, T], logical positions; negative is padding.
        now: position of the last token, an int or integers [B].

    Returns:
        [L, B, H, T] in the dtype of log_beta, NaN at padding.
    """
    layers, batch, heads, slots = log_beta.shape
    pos = expand_positions(pos, layers, batch, heads, slots)
    now = torch.as_tensor(now, device=pos.device)
    if now.shape not in ((), (batch,)):
        raise ValueError(f"now: got shape {list(now.shape)}, expected an int or [{batch}]")
    age = now.view(-1, 1, 1) + 1 - pos
    return (age * log_beta).masked_fill(pos < 0, torch.nan)


@torch.no_grad()
def gate_scores(
    gate: RetentionGate, hidden: Tensor, pos: Tensor, now: Tensor | int | None = None
) -> Tensor:
    """Scores [L, B, H, T] fp32 of a prefill, for a budget of the whole model.

    Args:
        gate: for the model that computed the hidden states.
        hidden: [L, B, T, model_dim], see `python_ref.gates.hidden`.
        pos: integers [T], [B, T] or [L, B, H, T]; negative is padding.
        now: see `score`; by default the largest position of each sequence.
    """
    log_beta = gate.log_beta(hidden).float()
    if now is None:
        places = expand_positions(pos, *log_beta.shape)
        now = places.amax(dim=(0, 2, 3))
    return score(log_beta, pos, now)
