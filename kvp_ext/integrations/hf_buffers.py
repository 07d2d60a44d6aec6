"""Buffers with room to grow along one dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Extent:
    """What all layers have in common, so that a forward counts once for all.

    Attributes:
        seen: tokens that every sequence went through, evicted ones and padding included.
        headroom: tokens of growth to reserve at least.
    """

    seen: int
    headroom: int


def reserve(
    buffer: Tensor, used: int, slots: int, headroom: int, dim: int, value: float = 0
) -> Tensor:
    """The buffer, or a larger copy if it has no room for `slots`; growth is geometric."""
    capacity = buffer.shape[dim]
    if slots <= capacity:
        return buffer
    grown = capacity + max(headroom, capacity // 2)
    return resized(buffer, used, max(slots, grown), dim, value)


def resized(buffer: Tensor, used: int, capacity: int, dim: int, value: float = 0) -> Tensor:
    """A copy of the first `used` slots with room for `capacity`, filled with `value`."""
    shape = list(buffer.shape)
    shape[dim] = capacity
    copy = new_buffer(buffer, shape, value)
    copy.narrow(dim, 0, used).copy_(buffer.narrow(dim, 0, used))
    return copy


def new_buffer(like: Tensor, shape: Sequence[int], value: float = 0) -> Tensor:
    """A buffer filled with `value`, not garbage: masked attention over all of it stays finite.

    A prompt may run in inference mode and what follows outside, where tensors made in inference
    mode cannot be written; so the buffer is never one of those.
    """
    with torch.inference_mode(False):
        return like.new_full(tuple(shape), value)
