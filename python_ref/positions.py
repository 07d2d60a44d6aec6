"""Logical positions of cache entries and the features a policy sees of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SMALLEST_SCALE = 1.0
LARGEST_SCALE = 131_072.0


def smooth_position_features(
    pos: Tensor, dim: int = 8, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Smooth, bounded features of the position alone.

        f_j(p) = (p - s_j) / (p + s_j) = tanh(log(p / s_j) / 2),   s_j = 131072^(j / (dim - 1))

    A soft thermometer of log position: feature j turns from -1 to 1 around p = s_j, and the scales
    s_j are log-spaced from 1 to 131,072. Each feature is monotone, so unlike a sinusoid it never
    takes the same value at two positions, and unlike a learned table it has no untrained rows.
    They depend on nothing but the position, so an entry's score never changes as the cache grows.

    Args:
        pos: integer positions of any shape; negative ones (padding) count as 0.
        dim: number of features, at least 2.
        dtype: of the result.

    Returns:
        [*pos.shape, dim] in [-1, 1).
    """
    if dim < 2:
        raise ValueError(f"dim: got {dim}, expected at least 2")
    exponent = torch.arange(dim, dtype=torch.float64, device=pos.device) / (dim - 1)
    scale = SMALLEST_SCALE * (LARGEST_SCALE / SMALLEST_SCALE) ** exponent
    p = pos.clamp(min=0).to(torch.float64)[..., None]
    return ((p - scale) / (p + scale)).to(dtype)


def expand_positions(pos: Tensor, layers: int, batch: int, heads: int, slots: int) -> Tensor:
    """View positions [T], [B, T] or [L, B, H, T] as [L, B, H, T]."""
    shape = (layers, batch, heads, slots)
    shared = {1: (slots,), 2: (batch, slots), 4: shape}
    if pos.dim() not in shared or tuple(pos.shape) != shared[pos.dim()]:
        raise ValueError(
            f"pos: got shape {tuple(pos.shape)}, expected [T], [B, T] or [L, B, H, T] "
            f"with [L, B, H, T] = {list(shape)}"
        )
    if pos.dim() == 2:
        pos = pos[:, None, :]
    return pos.expand(shape)


def layer_positions(
    pos: Tensor | Sequence[Tensor | None], layer: int, batch: int, heads: int, slots: int
) -> Tensor:
    """Positions [B, H, T] of one layer, a view.

    ``pos`` is [T], [B, T] or [L, B, H, T] with T the largest slot count of any layer (a smaller
    layer takes the first slots), or a sequence of one [B, H, T] tensor per layer.
    """
    if not isinstance(pos, Tensor):
        own = pos[layer]
        if own is None or tuple(own.shape) != (batch, heads, slots):
            got = None if own is None else tuple(own.shape)
            raise ValueError(f"pos[{layer}]: got {got}, expected shape {(batch, heads, slots)}")
        return own
    if pos.dim() == 4:
        pos = pos[layer]
    elif pos.dim() == 2:
        pos = pos[:, None, :]
    return pos[..., :slots].expand(batch, heads, slots)
