"""Attention over rows of unequal length, padded to the longest.

Every head of every layer sees as many of the cached slots as its row holds, and what follows them
causally. Nothing is masked that an engine with ragged storage would hold: the padding stands for
memory that was given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from python_ref.attention_call import AttentionCall

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTENTION = "kvp_ragged_sdpa"


@dataclass(frozen=True)
class Rows:
    """What caches hold.

    Attributes:
        lengths: [L, R, H], entries in the first slots of each row.
        slots: T, with padding; what the model runs on stands in later slots.
    """

    lengths: Tensor
    slots: int

    def visible(self, layer: int, queries: int, keys: int) -> Tensor:
        """Which keys the last `queries` of `keys` tokens see, [R, H, queries, keys] bool."""
        lengths = self.lengths[layer]
        place = torch.arange(self.slots, device=lengths.device)
        cached = (place < lengths[..., None])[:, :, None, :]
        new = keys - self.slots
        causal = torch.ones(queries, new, dtype=torch.bool, device=lengths.device)
        causal = causal.tril(new - queries).expand(*lengths.shape, -1, -1)
        return torch.cat([cached.expand(-1, -1, queries, -1), causal], dim=-1)


_rows: Rows | None = None


@contextmanager
def ragged(model: PreTrainedModel, lengths: Tensor | None, slots: int) -> Iterator[None]:
    """The model attends to the first `lengths` of `slots` cached entries in each row.

    Args:
        lengths: integers [L, R, H], for a batch of R caches; None: no row has padding, and the
            model's own attention runs.
        slots: of the cache when the context is entered. Tokens may be appended meanwhile.
    """
    global _rows
    if lengths is None:
        yield
        return
    before, rows_before = model.config._attn_implementation, _rows
    model.config._attn_implementation = _ATTENTION
    _rows = Rows(lengths.to(model.device), slots)
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _rows = rows_before


def _ragged_sdpa(
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
    if _rows is None:
        raise RuntimeError(f"the attention {_ATTENTION!r} is for forwards within `ragged` only")
    layer, groups = module.layer_idx, query.shape[1] // key.shape[1]
    visible = _rows.visible(layer, query.shape[2], key.shape[2])
    if softcap is not None or s_aux is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        call = AttentionCall(layer, query, key, visible, scale, softcap, s_aux)
        return call.output(value), None
    per_query_head = visible.repeat_interleave(groups, dim=1)
    return sdpa_attention_forward(
        module, query, key, value, per_query_head, scaling=scaling, **kwargs
    )


AttentionInterface.register(_ATTENTION, _ragged_sdpa)
AttentionMaskInterface.register(_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
