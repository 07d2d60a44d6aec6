"""Rotary position embeddings: turning queries and keys forth and back, and the mean rotation.

Channels are paired as in Hugging Face's Llama: channel c of the first half of the rotated channels
with channel c of the second half. Channels past the rotated ones stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rope:
    """The rotary embedding of a model.

    Attributes:
        frequencies: [R / 2] radians per position, of the R rotated channels.
        scaling: what rotated channels are multiplied by, beside the rotation.
    """

    frequencies: Tensor
    scaling: float = 1.0

    def rotate(self, x: Tensor, pos: Tensor) -> Tensor:
        """x [..., T, D] at positions pos [..., T]: R_pos x."""
        return self._turn(x, pos, 1.0, self.scaling)

    def unrotate(self, x: Tensor, pos: Tensor) -> Tensor:
        """The inverse of ``rotate``."""
        return self._turn(x, pos, -1.0, 1 / self.scaling)

    def mean_rotation(self, start: int, count: int, dim: int) -> Tensor:
        """R-bar [D, D] float64, the mean of R_pos over pos = start .. start + count - 1.

        Args:
            start: first position.
            count: positions, at least 1.
            dim: D, the channels of a head.
        """
        if count < 1:
            raise ValueError(f"count: got {count}, expected at least 1")
        pos = torch.arange(start, start + count, dtype=torch.float64)
        angles = pos[:, None] * self.frequencies.double().cpu()
        cos, sin = (self.scaling * f.mean(dim=0) for f in (angles.cos(), angles.sin()))
        half = len(cos)
        matrix = torch.eye(dim, dtype=torch.float64)
        first, second = torch.arange(half), torch.arange(half, 2 * half)
        matrix[first, first] = matrix[second, second] = cos
        matrix[first, second], matrix[second, first] = -sin, sin
        return matrix.to(self.frequencies.device)

    def _turn(self, x: Tensor, pos: Tensor, sign: float, scale: float) -> Tensor:
        half = len(self.frequencies)
        if x.shape[-1] < 2 * half:
            raise ValueError(f"x: got {x.shape[-1]} channels, expected at least {2 * half}")
        dtype = torch.promote_types(x.dtype, torch.float32)
        # Angles in float64: at position 100,000 float32 has 2 digits left after the point.
        angles = sign * pos[..., None].double() * self.frequencies.to(x.device).double()
        cos, sin = (scale * f.to(dtype) for f in (angles.cos(), angles.sin()))
        first, second, rest = x.to(dtype).split([half, half, x.shape[-1] - 2 * half], dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin, rest)
        return torch.cat(turned, dim=-1)


def rope_of(model: nn.Module) -> Rope:
    """The rotary embedding of a transformers model's full-attention layers.

    Raises:
        ValueError: the model has none, several, or one whose frequencies change with the length of
            the sequence.
    """
    found = [m for m in model.modules() if isinstance(getattr(m, "inv_freq", None), Tensor)]
    kinds = {getattr(m, "rope_type", "default") for m in found}
    name = type(model).__name__
    if "dynamic" in kinds or "longrope" in kinds:
        raise ValueError(
            f"{name} has rotary frequencies that change with the length ({', '.join(sorted(kinds))}"
            "), expected fixed ones"
        )
    distinct = [m for i, m in enumerate(found) if not any(_same(m, o) for o in found[:i])]
    if len(distinct) != 1:
        raise ValueError(f"{name} has {len(distinct)} rotary embeddings, expected one")
    module: Any = distinct[0]
    return Rope(module.inv_freq.detach().clone(), float(getattr(module, "attention_scaling", 1.0)))


def _same(one: Any, other: Any) -> bool:
    return one.inv_freq.shape == other.inv_freq.shape and bool(
        (one.inv_freq == other.inv_freq).all()
    )


def output_grams(model: nn.Module) -> Tensor:
    """W^T W of every query head's part W of the output projections, [L, H G, Dv, Dv] fp32.

    The norm of what value v adds to the residual stream is sqrt(v^T W^T W v).

    Raises:
        ValueError: attention modules without an output projection from all their heads.
    """
    whole: Any = model.config
    config = whole.get_text_config()
    heads = config.num_attention_heads
    modules: list[Any] = [
        m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "o_proj")
    ]
    if len(modules) != config.num_hidden_layers:
        raise ValueError(
            f"{type(model).__name__} has {len(modules)} attention modules with layer_idx and "
            f"o_proj, expected {config.num_hidden_layers}"
        )
    grams = []
    for module in sorted(modules, key=lambda m: m.layer_idx):
        weight = module.o_proj.weight.detach().float()
        by_head = weight.reshape(weight.shape[0], heads, -1)
        grams.append(torch.einsum("ohd,ohe->hde", by_head, by_head))
    return torch.stack(grams)
