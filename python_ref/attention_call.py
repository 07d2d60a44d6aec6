"""What one layer of a running model attends to, exactly as the model computes it.

`python_ref.attention` defines attention for a plain causal prefix. Models add to it: sliding
windows, another scale, soft-capped logits, learned sinks. A call carries what decides the weights
and produces them in blocks of queries, in float32 whatever the model computes in, so no T x T
matrix is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Logits held at once: enough for matrix products to be efficient, and small beside a model.
BLOCK_ELEMENTS = 1 << 19


@dataclass(frozen=True)
class AttentionCall:
    """One attention layer in one forward.

    Attributes:
        layer: its index.
        query: [B, H G, Tq, D] after RoPE, of the last Tq of the keys' tokens.
        key: [B, H, Tk, D] after RoPE.
        mask: [B or 1, 1, Tq, >= Tk], True or 0 where a query sees a key, False or hugely negative
            where not; None: causal.
        scale: of the logits.
        softcap: c in logits c tanh(logits / c); None: not capped.
        sinks: [H G] logits that share in the softmax and belong to no key; None: there are none.
    """

    layer: int
    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def groups(self) -> int:
        """G, the query heads that share a KV head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def block_rows(self) -> int:
        """Queries of a block: as many as fit, at least one."""
        batch, query_heads = self.query.shape[:2]
        return max(1, BLOCK_ELEMENTS // (batch * query_heads * self.key.shape[2]))

    def logit_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Logits of the queries [start, stop), which index the rows of `query`.

        Yields:
            (first query, logits [B, H, G, t, K]), -inf where a query does not see a key. K is as
            many of the keys as the block's queries can see at all.
        """
        batch, _, queries, dim = self.query.shape
        heads, keys = self.key.shape[1:3]
        offset = keys - queries
        stop = queries if stop is None else stop
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        key = self.key.to(dtype).mT
        rows = self.block_rows
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            seen = offset + last
            block = self.query[:, :, first:last].to(dtype) * self.scale
            block = block.reshape(batch, heads, -1, dim)
            logits = torch.matmul(block, key[..., :seen])
            logits = logits.view(batch, heads, self.groups, last - first, seen)
            if self.softcap is not None:
                logits = self.softcap * torch.tanh(logits / self.softcap)
            self._hide(logits, first)
            yield first, logits

    def _hide(self, logits: Tensor, first: int) -> None:
        """Sets logits of the queries from `first` on to -inf where they do not see the key."""
        count, seen = logits.shape[-2:]
        if self.mask is None:  # only the block's own tokens can lie in a query's future
            future = torch.ones(count, count, dtype=torch.bool, device=logits.device).triu(1)
            logits[..., seen - count :].masked_fill_(future, -torch.inf)
        else:
            mask = self.mask[:, :, None, first : first + count, :seen]
            logits.masked_fill_(~mask if mask.dtype == torch.bool else mask < 0, -torch.inf)

    def weights(self, logits: Tensor) -> Tensor:
        """Attention weights of a block of logits, in its shape."""
        if self.sinks is None:
            return logits.softmax(dim=-1)
        sinks = self.sinks.to(logits.dtype).view(1, -1, self.groups, 1, 1)
        sinks = sinks.expand(*logits.shape[:-1], 1)
        return torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[..., :-1]

    def group_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Group attention A[t, i] = max over the G query heads, in blocks [B, H, t, K].

        Arguments and the first item of each pair are those of `logit_blocks`.
        """
        for first, logits in self.logit_blocks(start, stop):
            yield first, self.weights(logits).amax(dim=2)

    def first_visible(self) -> Tensor:
        """[Tq] int32, the first key that each query of the first row sees."""
        if self.mask is None:
            return torch.zeros(self.query.shape[2], dtype=torch.int32, device=self.key.device)
        mask = self.mask[0, 0]
        seen = mask if mask.dtype == torch.bool else mask >= 0
        return seen.int().argmax(dim=-1).int()

    def output(self, value: Tensor) -> Tensor:
        """The layer's output [B, Tq, H G, Dv], in the dtype of value [B, H, Tk, Dv]."""
        parts = []
        for _, logits in self.logit_blocks():
            weights = self.weights(logits)
            seen = value[..., : weights.shape[-1], :].to(weights.dtype)
            parts.append(torch.einsum("bhgti,bhid->bhgtd", weights, seen).to(value.dtype))
        return torch.cat(parts, dim=3).flatten(1, 2).transpose(1, 2).contiguous()
