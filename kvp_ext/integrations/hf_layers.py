"""Storage of `KVPCache`: cache layers over buffers with room to grow, and which layers get one."""

from __future__ import annotations

from collections.abc import Callable
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

from .hf_buffers import Extent, new_buffer, reserve, resized
from .hf_entries import Rows


class KVPLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """K and V of one full-attention layer.

    Attributes:
        rows: what its slots hold; other layers share it until an eviction.
        key_buffer, value_buffer: `[B, H, capacity, D]`; `None` before the first forward.
        score_buffer: fp32 `[B, H, capacity]`, a number that stays with its entry, NaN where there
            is none; `None` unless `keeps_scores`.
        scored: leading slots that have had their turn to be scored.
    """

    is_sliding = False
    # Asked by assisted decoding, which takes back tokens at any time: see KVPCache.crop.
    is_croppable = False

    def __init__(self, extent: Extent, rows: Rows) -> None:
        """Makes an empty layer; `extent` and `rows` are shared with the cache."""
        # Not the base class's: it assigns `keys` and `values`, which are views here.
        self._extent = extent
        self.rows = rows
        self.is_initialized = False
        self.keeps_scores = False
        self.key_buffer: Tensor | None = None
        self.value_buffer: Tensor | None = None
        self.score_buffer: Tensor | None = None
        self.scored = 0

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """`[B, H, slots, D]`: the part of the buffer in use."""
        return None if self.key_buffer is None else self.key_buffer[:, :, : self.rows.slots]

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """`[B, H, slots, D]`: the part of the buffer in use."""
        return None if self.value_buffer is None else self.value_buffer[:, :, : self.rows.slots]

    def used(self) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer that has seen a forward."""
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        return keys, values

    def scores(self) -> Tensor:
        """`[B, H, slots]`: the scores that stay with their entries."""
        assert self.score_buffer is not None
        return self.score_buffer[:, :, : self.rows.slots]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates exactly the prompt: what follows it is an eviction, not growth."""
        self.key_buffer = new_buffer(key_states, key_states.shape)
        self.value_buffer = new_buffer(value_states, value_states.shape)
        if self.keeps_scores:
            self.start_scores()
        self.is_initialized = True

    def start_scores(self) -> None:
        """A score for every slot, none known yet."""
        assert self.key_buffer is not None
        like = torch.empty(0, dtype=torch.float32, device=self.key_buffer.device)
        self.score_buffer = new_buffer(like, self.key_buffer.shape[:3], torch.nan)
        self.scored = 0

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
        start = self.rows.slots
        stop = start + key_states.shape[2]
        room = (start, stop, self._extent.headroom)
        self.key_buffer = reserve(self.key_buffer, *room, dim=2)
        self.value_buffer = reserve(self.value_buffer, *room, dim=2)
        self.key_buffer[:, :, start:stop] = key_states
        self.value_buffer[:, :, start:stop] = value_states
        if self.score_buffer is not None:
            self.score_buffer = reserve(self.score_buffer, *room, dim=2, value=torch.nan)
            self.score_buffer[:, :, start:stop] = torch.nan
        return self.key_buffer[:, :, :stop], self.value_buffer[:, :, :stop]

    def note(self, numbers: Tensor) -> None:
        """Scores `[B, H, q]` of the entries just written, which the forward has yet to complete."""
        assert self.score_buffer is not None
        start = self.rows.slots
        self.score_buffer[:, :, start : start + numbers.shape[2]] = numbers

    def shrink(self) -> None:
        """Gives back what the slots in use and the headroom do not need."""
        slots = self.rows.slots
        capacity = slots + self._extent.headroom
        if self.key_buffer is not None and self.key_buffer.shape[2] > capacity:
            self.key_buffer = resized(self.key_buffer, slots, capacity, dim=2)
        if self.value_buffer is not None and self.value_buffer.shape[2] > capacity:
            self.value_buffer = resized(self.value_buffer, slots, capacity, dim=2)
        if self.score_buffer is not None and self.score_buffer.shape[2] > capacity:
            self.score_buffer = resized(self.score_buffer, slots, capacity, dim=2, value=torch.nan)

    def select_rows(self, select: Callable[[Tensor], Tensor]) -> None:
        """Replaces the batch by the rows that `select` takes from a `[B, …]` tensor."""
        if self.key_buffer is not None and self.value_buffer is not None:
            self.key_buffer = select(self.key_buffer)
            self.value_buffer = select(self.value_buffer)
        if self.score_buffer is not None:
            self.score_buffer = select(self.score_buffer)

    def copy_to(self, twin: KVPLayer, *, with_scores: bool) -> None:
        """Gives another layer a copy of what is in use, with or without the scores."""
        if not self.is_initialized:
            return
        keys, values = self.used()
        slots = self.rows.slots
        twin.key_buffer = resized(keys, slots, slots, dim=2)
        twin.value_buffer = resized(values, slots, slots, dim=2)
        twin.is_initialized = True
        if twin.keeps_scores:
            twin.start_scores()
            if with_scores and self.score_buffer is not None:
                twin.score_buffer = resized(self.scores(), slots, slots, dim=2, value=torch.nan)
                twin.scored = self.scored

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Length of the keys in the coming forward, and the mask column of the first."""
        slots = self.rows.slots
        return slots + query_length_of(query_length), self._extent.seen - slots

    def get_seq_length(self, *_: Any) -> int:
        """Tokens seen, evicted ones included."""
        return self._extent.seen

    def get_max_length(self) -> int:
        """-1: no limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5


def layers_for(config: PretrainedConfig, extent: Extent, rows: Rows) -> list[Any]:
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
            layers.append(KVPLayer(extent, rows))
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
