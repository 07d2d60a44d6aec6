"""What every slot of a `KVPCache` holds: logical positions, and which tokens are padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .hf_buffers import Extent, new_buffer, reserve, resized


class Rows:
    """Logical position of every entry in a layer's storage, or in all layers' until an eviction.

    Rows may hold different numbers of entries. The new tokens of a forward get the same slots in
    all rows of a layer, so the slots of shorter rows have a hole (position -1) before them, until
    the next eviction closes it.

    Attributes:
        slots: that every row of the layer takes, holes included.
        pos: int32 `[B, 1, capacity]` while all heads hold the same tokens, then
            `[B, H, capacity]`; -1 at padding and holes. `None` before the first forward.
    """

    def __init__(self, pos: Tensor | None = None, slots: int = 0) -> None:
        """Takes over `pos`, of which `slots` are in use."""
        self.slots = slots
        self.pos = pos

    def used(self) -> Tensor:
        """`pos` of the slots in use."""
        assert self.pos is not None
        return self.pos[..., : self.slots]

    def valid(self) -> Tensor:
        """bool `[B, 1 or H, slots]`: which slots hold an entry."""
        return self.used() >= 0

    def append(self, new_pos: Tensor, headroom: int) -> None:
        """Counts the entries of a complete forward, at `new_pos` `[B, q]`."""
        if self.pos is None:
            self.pos = new_buffer(new_pos, (len(new_pos), 1, new_pos.shape[1]), -1)
        stop = self.slots + new_pos.shape[1]
        self.pos = reserve(self.pos, self.slots, stop, headroom, dim=2, value=-1)
        self.pos[..., self.slots : stop] = new_pos[:, None]
        self.slots = stop

    def mask(self, incoming: Tensor) -> Tensor:
        """What new tokens may attend to: bool `[B, 1 or H, q, slots + q]`.

        Stored entries, and of the new tokens those that are real and not later. A new token that is
        padding also sees itself, so that no row of an attention is empty.

        Args:
            incoming: bool `[B, q]`, which of the new tokens are real.
        """
        batch, q = incoming.shape
        causal = torch.ones(q, q, dtype=torch.bool, device=incoming.device).tril()
        own = torch.eye(q, dtype=torch.bool, device=incoming.device)
        new = (causal & incoming[:, None]) | own
        if self.pos is None:
            return new[:, None]
        valid = self.valid()
        stored = valid[:, :, None].expand(-1, -1, q, -1)
        return torch.cat([stored, new[:, None].expand(batch, valid.shape[1], q, q)], dim=-1)


class Entries:
    """Positions of all entries, kept in step with the attention masks seen.

    Attributes:
        rows: the distinct `Rows` of the layers: one for all of them before the first eviction,
            then one for each.
        next_pos: int32 `[B]`, logical position of the next token of every sequence.
        mask: bool `[B, seen]`, which tokens are real; `None` as long as all are.
        incoming: bool `[B, q]`, which tokens of the coming forward are real; `None` unless the
            cache was told.
        ragged: whether rows hold different numbers of entries, by an eviction.
        frozen: tokens seen at the last eviction; they cannot be taken back.
    """

    def __init__(self, extent: Extent) -> None:
        """Makes an empty table; `extent` is shared with the layers."""
        self.extent = extent
        self.rows = [Rows()]
        self.next_pos: Tensor | None = None
        self.mask: Tensor | None = None
        self.incoming: Tensor | None = None
        self.ragged = False
        self.frozen = 0

    @property
    def shared(self) -> bool:
        """Whether all heads of all layers hold the same tokens, since nothing was evicted yet."""
        pos = self.rows[0].pos
        return len(self.rows) == 1 and pos is not None and pos.shape[1] == 1

    @property
    def fresh(self) -> int:
        """Tokens seen since the last eviction: the last slots of every row."""
        return self.extent.seen - self.frozen

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

    def needs_masks(self) -> bool:
        """Whether the coming forward needs masks of its own.

        Not if no padding was ever seen and rows are equally long: then the sizes that the layers
        report are enough. With padding behind it, the mask that comes with a forward would not do
        even if no row has a hole: its columns are not where the survivors are.
        """
        assert self.incoming is not None
        return self.ragged or self.mask is not None or not bool(self.incoming.all())

    def append(self, query_length: int, like: Tensor) -> None:
        """Gives the entries of a complete forward their positions, and counts them.

        Real tokens count up from `next_pos`, as the position ids that `generate` derives from
        the mask do.
        """
        extent, batch, device = self.extent, like.shape[0], like.device
        if self.next_pos is None:
            self.next_pos = torch.zeros(batch, dtype=torch.int32, device=device)
        real = self.incoming
        all_real = real is None or bool(real.all())
        if real is None:
            real = torch.ones(batch, query_length, dtype=torch.bool, device=device)
        counted = real.cumsum(-1, dtype=torch.int32)
        new_pos = (counted - 1 + self.next_pos[:, None]).masked_fill(~real, -1)
        for rows in self.rows:
            rows.append(new_pos, extent.headroom)
        self.next_pos = self.next_pos + counted[:, -1]
        if self.mask is not None or not all_real:
            known = real.new_ones(batch, extent.seen) if self.mask is None else self.mask
            self.mask = torch.cat([known, real], dim=-1)
        self.incoming = None
        extent.seen += query_length

    def _forget(self, real: Tensor) -> None:
        """Turns stored tokens that a later mask hides into padding.

        After a batch has generated, the mask of the next turn usually hides what the sequences
        that ended early went on producing.
        """
        if self.next_pos is None:
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
        for rows in self.rows:
            recent = rows.used()[..., rows.slots - self.fresh :]
            recent.masked_fill_(hidden[:, None, self.frozen :], -1)
        self.next_pos = real.sum(-1, dtype=torch.int32)
        self.mask = real.clone()

    # ---- changes between forwards ----------------------------------------------------------

    def replace(self, rows: Sequence[Rows], *, ragged: bool) -> None:
        """After an eviction: what the layers hold now."""
        self.rows = list(rows)
        self.ragged = ragged
        self.frozen = self.extent.seen

    def crop(self, count: int) -> None:
        """Drops the newest `count` tokens.

        Raises:
            ValueError: some of them were there at the last eviction.
        """
        if self.next_pos is None or count == 0:
            return
        if count > self.fresh:
            raise ValueError(
                f"crop of {count} tokens, expected at most {self.fresh}: what was there at the "
                "last eviction cannot be restored"
            )
        dropped = self.rows[0].valid()[:, 0, -count:]  # the same in all rows
        self.next_pos = self.next_pos - dropped.sum(-1, dtype=torch.int32)
        for rows in self.rows:
            rows.slots -= count
        self.extent.seen -= count
        self.mask = None if self.mask is None else self.mask[:, : self.extent.seen]

    def select_rows(self, select: Callable[[Tensor], Tensor]) -> None:
        """Replaces the batch by the rows that `select` takes from a `[B, …]` tensor."""
        if self.next_pos is None:
            return
        for rows in self.rows:
            assert rows.pos is not None
            rows.pos = select(rows.pos)
        self.next_pos = select(self.next_pos)
        self.mask = None if self.mask is None else select(self.mask)

    def copy_to(self, extent: Extent) -> Entries:
        """An independent copy that shares `extent` with other layers."""
        twin = Entries(extent)
        if self.next_pos is not None:
            twin.rows = [
                Rows(resized(rows.used(), rows.slots, rows.slots, dim=2), rows.slots)
                for rows in self.rows
            ]
            twin.next_pos = self.next_pos.clone()
        twin.mask = None if self.mask is None else self.mask.clone()
        twin.ragged = self.ragged
        twin.frozen = self.frozen
        return twin
