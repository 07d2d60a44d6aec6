"""Storage of `KVPCache`: cache layers over buffers with room to grow, and which layers get one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)


@dataclass
class Extent:
    """How much of the storage is in use. Layers share it, so that a forward counts once for all.

    Attributes:
        slots: entries that every row stores, the holes of shorter rows included.
        seen: tokens that every sequence went through, evicted ones and padding included.
        headroom: tokens of growth to reserve at least.
    """

    slots: int
    seen: int
    headroom: int


class KVPLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """K and V of one full-attention layer.

    Attributes:
        key_buffer, value_buffer: `[B, H, capacity, D]`; `None` before the first forward.
    """

    is_sliding = False
    # Asked by assisted decoding, which takes back tokens at any time: see KVPCache.crop.
    is_croppable = False

    def __init__(self, extent: Extent) -> None:
        """Makes an empty layer; `extent` is shared with the cache."""
        # Not the base class's: it assigns `keys` and `values`, which are views here.
        self._extent = extent
        self.is_initialized = False
        self.key_buffer: Tensor | None = None
        self.value_buffer: Tensor | None = None

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """`[B, H, slots, D]`: the part of the buffer in use."""
        return None if self.key_buffer is None else self.key_buffer[:, :, : self._extent.slots]

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """`[B, H, slots, D]`: the part of the buffer in use."""
        return None if self.value_buffer is None else self.value_buffer[:, :, : self._extent.slots]

    def used(self) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer that has seen a forward."""
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        return keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates exactly the prompt: what follows it is an eviction, not growth."""
        self.key_buffer = new_buffer(key_states, key_states.shape)
        self.value_buffer = new_buffer(value_states, value_states.shape)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes behind the slots in use, which stay the same until the forward is complete."""
        if self.key_buffer is None or self.value_buffer is None:
            self.lazy_initialization(key_states, value_states)
        assert self.key_buffer is not None
        assert self.value_buffer is not None
        if key_states.shape[:2] != self.key_buffer.shape[:2]:
            raise ValueError(
                f"key_states has [batch, KV heads] {list(key_states.shape[:2])}, this cache holds "
                f"{list(self.key_buffer.shape[:2])}; use one KVPCache for each batch"
            )
        start = self._extent.slots
        stop = start + key_states.shape[2]
        self.key_buffer = reserve(self.key_buffer, self._extent, stop, dim=2)
        self.value_buffer = reserve(self.value_buffer, self._extent, stop, dim=2)
        self.key_buffer[:, :, start:stop] = key_states
        self.value_buffer[:, :, start:stop] = value_states
        return self.key_buffer[:, :, :stop], self.value_buffer[:, :, :stop]

    def shrink(self) -> None:
        """Gives back what the slots in use and the headroom do not need."""
        capacity = self._extent.slots + self._extent.headroom
        if self.key_buffer is not None and self.key_buffer.shape[2] > capacity:
            self.key_buffer = resized(self.key_buffer, self._extent.slots, capacity, dim=2)
        if self.value_buffer is not None and self.value_buffer.shape[2] > capacity:
            self.value_buffer = resized(self.value_buffer, self._extent.slots, capacity, dim=2)

    def select_rows(self, select: Callable[[Tensor], Tensor]) -> None:
        """Replaces the batch by the rows that `select` takes from a `[B, …]` tensor."""
        if self.key_buffer is not None and self.value_buffer is not None:
            self.key_buffer = select(self.key_buffer)
            self.value_buffer = select(self.value_buffer)

    def copy_to(self, twin: KVPLayer) -> None:
        """Gives another layer a copy of what is in use."""
        if self.is_initialized:
            keys, values = self.used()
            twin.key_buffer = resized(keys, keys.shape[2], keys.shape[2], dim=2)
            twin.value_buffer = resized(values, values.shape[2], values.shape[2], dim=2)
            twin.is_initialized = True

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Length of the keys in the coming forward, and the mask column of the first."""
        extent = self._extent
        return extent.slots + query_length_of(query_length), extent.seen - extent.slots

    def get_seq_length(self, *_: Any) -> int:
        """Tokens seen, evicted ones included."""
        return self._extent.seen

    def get_max_length(self) -> int:
        """-1: no limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5


def layers_for(config: PretrainedConfig, extent: Extent) -> list[Any]:
    """The layers transformers would use, the full-attention ones replaced by `KVPLayer`.

    Raises:
        ValueError: a kind of layer that is not supported, or nothing to evict.
    """
    text = config.get_text_config(decoder=True)
    if getattr(text, "num_kv_shared_layers", 0):
        raise ValueError(
            f"config.num_kv_shared_layers is {text.num_kv_shared_layers}, expected 0: layers that "
            "share a cache are not supported"
        )
    layers: list[Any] = []
    for i, layer in enumerate(DynamicCache(config=text).layers):
        if type(layer) is DynamicLayer:
            layers.append(KVPLayer(extent))
        elif type(layer) is DynamicSlidingWindowLayer:
            layers.append(layer)
        else:
            raise ValueError(
                f"layer {i} of {type(config).__name__} caches as {type(layer).__name__}, expected "
                "full or sliding-window attention"
            )
    if not any(isinstance(layer, KVPLayer) for layer in layers):
        raise ValueError(
            f"all layers of this {type(config).__name__} have a sliding window, so there is "
            "nothing to evict; expected at least one full-attention layer"
        )
    return layers


def query_length_of(query: int | Tensor) -> int:
    """New tokens of a forward; transformers 4 passes their positions instead of their number."""
    return query.shape[0] if isinstance(query, Tensor) else query


def reserve(buffer: Tensor, extent: Extent, slots: int, dim: int) -> Tensor:
    """The buffer, or a larger copy if it has no room for `slots`; growth is geometric."""
    capacity = buffer.shape[dim]
    if slots <= capacity:
        return buffer
    grown = capacity + max(extent.headroom, capacity // 2)
    return resized(buffer, extent.slots, max(slots, grown), dim)


def resized(buffer: Tensor, used: int, capacity: int, dim: int) -> Tensor:
    """A copy of the first `used` slots with room for `capacity`."""
    shape = list(buffer.shape)
    shape[dim] = capacity
    copy = new_buffer(buffer, shape)
    copy.narrow(dim, 0, used).copy_(buffer.narrow(dim, 0, used))
    return copy


def new_buffer(like: Tensor, shape: Sequence[int], value: int = 0) -> Tensor:
    """A buffer filled with `value`, not garbage: masked attention over all of it stays finite.

    A prompt may run in inference mode and what follows outside, where tensors made in inference
    mode cannot be written; so the buffer is never one of those.
    """
    with torch.inference_mode(False):
        return like.new_full(tuple(shape), value)
