"""Attention over rows of unequal length, padded to the longest.

Every head of every layer sees as many of the cached slots as its row holds, and what follows them
causally. Nothing is masked that an engine with ragged storage would hold: the padding stands for
memory that was given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from python_ref.attention_call import AttentionCall
from python_ref.attention_interface import Plain, replaced_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


@contextmanager
def ragged(model: PreTrainedModel, lengths: Tensor | None, slots: int) -> Iterator[None]:
    """The model attends to the first `lengths` of `slots` cached entries in each row.

    Args:
        lengths: integers [L, R, H], for a batch of R caches; None: no row has padding, and the
            model's own attention runs.
        slots: of the cache when the context is entered. Tokens may be appended meanwhile.
    """
    if lengths is None:
        yield
        return
    rows = Rows(lengths.to(model.device), slots)

    def attend(call: AttentionCall, value: Tensor, plain: Plain) -> Tensor:
        return plain(rows.visible(call.layer, call.query.shape[2], call.key.shape[2]))

    with replaced_attention(model, attend):
        yield
