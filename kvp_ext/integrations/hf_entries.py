"""What every slot of a `KVPCache` holds: logical positions, and which tokens are padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .hf_layers import Extent, new_buffer, reserve, resized


class Entries:
    """Logical position of every stored entry, kept in step with the attention masks seen.

    Rows of one sequence always hold equally many entries, in slots that are the same for all
    layers and heads, because a sequence has one budget. That is what lets one two-dimensional
    mask describe the storage.

    Attributes:
        pos: int32 `[1, B, 1, capacity]` while all heads hold the same tokens, then
            `[full layers, B, H, capacity]`; -1 at padding. `None` before the first forward.
        next_pos: int32 `[B]`, logical position of the next token of every sequence.
        mask: bool `[B, seen]`, which tokens are real; `None` as long as all are.
        incoming: bool `[B, q]`, which tokens of the coming forward are real; `None` unless the
            cache was told.
        frozen: tokens seen at the last eviction; they cannot be taken back.
    """

    def __init__(self, extent: Extent) -> None:
        """Makes an empty table; `extent` is shared with the layers."""
        self.extent = extent
        self.pos: Tensor | None = None
        self.next_pos: Tensor | None = None
        self.mask: Tensor | None = None
        self.incoming: Tensor | None = None
        self.frozen = 0

    def used(self) -> Tensor:
        """`pos` of the slots in use."""
        assert self.pos is not None
        return self.pos[..., : self.extent.slots]

    def valid(self) -> Tensor:
        """bool `[B, slots]`: which slots hold an entry."""
        return self.used()[0, :, 0] >= 0

    # ---- a forward -------------------------------------------------------------------------

    def announce(self, mask: Tensor | None, tokens: Tensor) -> None:
        """Takes in the attention mask of the coming forward.

        Args:
            mask: `[B, seen + q]`, or `None`: the new tokens are all real.
            tokens: ids or embeddings of the new tokens, `[B, q, …]`.

        Raises:
            ValueError: another shape, or old tokens hidden or shown that cannot be.
        """
        batch, query_length = tokens.shape[:2]
        seen = self.extent.seen
        if mask is None:
            self.incoming = torch.ones(batch, query_length, dtype=torch.bool, device=tokens.device)
            return
        if tuple(mask.shape) != (batch, seen + query_length):
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}, expected [batch, tokens seen + new "
                f"tokens] = {[batch, seen + query_length]}"
            )
        real = mask.to(device=tokens.device, dtype=torch.bool)
        self._forget(real[:, :seen])
        self.incoming = real[:, seen:]

    def attention_mask(self) -> Tensor | None:
        """What the coming forward may attend to: bool `[B, seen + q]`.

        Slot `s` is column `s + seen - slots`, as the sizes that the layers report say. `None` if
        no padding was ever seen. With padding behind it, the mask that came with the forward
        would not do even if no row has a hole: its columns are not where the survivors are.
        """
        assert self.incoming is not None
        if self.mask is None and bool(self.incoming.all()):
            return None
        seen, slots = self.extent.seen, self.extent.slots
        mask = self.incoming.new_zeros(len(self.incoming), seen + self.incoming.shape[1])
        mask[:, seen:] = self.incoming
        if self.pos is not None:
            mask[:, seen - slots : seen] = self.valid()
        return mask

    def append(self, query_length: int, like: Tensor) -> None:
        """Gives the entries of a complete forward their positions, and counts them.

        Real tokens count up from `next_pos`, as the position ids that `generate` derives from
        the mask do.
        """
        extent, batch, device = self.extent, like.shape[0], like.device
        if self.pos is None or self.next_pos is None:
            self.next_pos = torch.zeros(batch, dtype=torch.int32, device=device)
            self.pos = new_buffer(self.next_pos, (1, batch, 1, query_length), -1)
        real = self.incoming
        all_real = real is None or bool(real.all())
        if real is None:
            real = torch.ones(batch, query_length, dtype=torch.bool, device=device)
        counted = real.cumsum(-1, dtype=torch.int32)
        new_pos = (counted - 1 + self.next_pos[:, None]).masked_fill(~real, -1)
        stop = extent.slots + query_length
        self.pos = reserve(self.pos, extent, stop, dim=3)
        self.pos[..., extent.slots : stop] = new_pos[None, :, None]
        self.next_pos = self.next_pos + counted[:, -1]
        if self.mask is not None or not all_real:
            known = real.new_ones(batch, extent.seen) if self.mask is None else self.mask
            self.mask = torch.cat([known, real], dim=-1)
        self.incoming = None
        extent.slots = stop
        extent.seen += query_length

    def _forget(self, real: Tensor) -> None:
        """Turns stored tokens that a later mask hides into padding.

        After a batch has generated, the mask of the next turn usually hides what the sequences
        that ended early went on producing.
        """
        if self.pos is None:
            return
        known = torch.ones_like(real) if self.mask is None else self.mask
        if torch.equal(known, real):
            return
        if bool((real & ~known).any()):
            raise ValueError("attention_mask shows tokens that it hid in an earlier forward")
        hidden = known & ~real
        if bool(hidden[:, : self.frozen].any()):
            raise ValueError(
                "attention_mask hides tokens that it showed when the cache was evicted, and heads "
                "have kept different ones of them; hide them before the eviction"
            )
        start = self.frozen - (self.extent.seen - self.extent.slots)
        recent = self.pos[..., start : self.extent.slots]
        recent.masked_fill_(hidden[None, :, None, self.frozen :], -1)
        self.next_pos = real.sum(-1, dtype=torch.int32)
        self.mask = real.clone()

    # ---- changes between forwards ----------------------------------------------------------

    def replace(self, pos: Tensor, slots: int) -> None:
        """After an eviction: the survivors' positions, and the slots of the longest row."""
        self.pos = pos
        self.frozen = self.extent.seen
        self.extent.slots = slots

    def crop(self, count: int) -> None:
        """Drops the newest `count` tokens.

        Raises:
            ValueError: some of them were there at the last eviction.
        """
        extent = self.extent
        if self.next_pos is None or count == 0:
            return
        if count > extent.seen - self.frozen:
            raise ValueError(
                f"crop of {count} tokens, expected at most {extent.seen - self.frozen}: what was "
                "there at the last eviction cannot be restored"
            )
        self.next_pos = self.next_pos - self.valid()[:, -count:].sum(-1, dtype=torch.int32)
        extent.slots -= count
        extent.seen -= count
        self.mask = None if self.mask is None else self.mask[:, : extent.seen]

    def select_rows(self, select: Callable[[Tensor], Tensor]) -> None:
        """Replaces the batch by the rows that `select` takes from a `[B, …]` tensor."""
        if self.pos is None or self.next_pos is None:
            return
        self.pos = select(self.pos.transpose(0, 1)).transpose(0, 1).contiguous()
        self.next_pos = select(self.next_pos)
        self.mask = None if self.mask is None else select(self.mask)

    def copy_to(self, extent: Extent) -> Entries:
        """An independent copy that shares `extent` with other layers."""
        twin = Entries(extent)
        if self.pos is not None and self.next_pos is not None:
            twin.pos = resized(self.pos, self.extent.slots, self.extent.slots, dim=3)
            twin.next_pos = self.next_pos.clone()
        twin.mask = None if self.mask is None else self.mask.clone()
        twin.frozen = self.frozen
        return twin
