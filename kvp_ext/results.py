"""What the operations return."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from python_ref.selection import Selection

__all__ = ["Evicted", "Selection"]


@dataclass(frozen=True, slots=True)
class Evicted:
    """Outcome of `evict_` or `compact_`.

    Attributes:
        lengths: int32 `[L, B, H]`, entries of each row now, in slots `0 … lengths-1`.
        pos: int32 or int64 `[L, B, H, N]`, logical positions of the survivors, filled with -1.
        kept: int32 `[L, B, H, N]`, the slot each survivor came from, filled with -1; `None`
            unless asked for.
        changed: one int32 on the cache's device: 1 if any row was changed.
    """

    lengths: Tensor
    pos: Tensor
    kept: Tensor | None
    changed: Tensor

    def __repr__(self) -> str:
        L, B, H, N = self.pos.shape
        kept = "returned" if self.kept is not None else "not asked for"
        return f"Evicted(rows={[L, B, H]}, capacity={N}, kept {kept}, device={self.pos.device})"

    @property
    def evicted(self) -> bool:
        """False if the call was a no-op. Waits for the device on an accelerator."""
        return bool(self.changed.item())
