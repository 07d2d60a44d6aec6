"""Training in several processes, started by torchrun: over items, or over heads.

data    every process holds all heads and takes its share of each step's items; gradients are
        averaged. For many items a step.
heads   every process holds layers of its own and takes all items; no gradient is exchanged, only
        what is logged, and the layers when they are saved. Exactly the training of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

MODES = ("data", "heads")


@dataclass(frozen=True)
class Parallel:
    """This process among the others.

    Attributes:
        mode: "data" or "heads".
        rank, world: which process, of how many.
    """

    mode: str = "data"
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Check the mode."""
        if self.mode not in MODES:
            raise ValueError(f"parallel: got {self.mode!r}, expected one of {MODES}")

    @classmethod
    def start(cls, mode: str, device: torch.device | str = "cpu") -> Parallel:
        """Join the processes that torchrun started; alone without it. "cuda" is one's own GPU."""
        cls(mode)
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls(mode)
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not dist.is_initialized():
            dist.init_process_group("nccl" if on_gpu else "gloo")
        return cls(mode, dist.get_rank(), dist.get_world_size())

    def stop(self) -> None:
        """Leave the group."""
        if self.world > 1:
            dist.destroy_process_group()

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def layers(self, layers: int, rank: int | None = None) -> slice:
        """The layers that a process (by default this one) holds."""
        if self.mode == "data":
            return slice(0, layers)
        if self.world > layers:
            raise ValueError(
                f"parallel: got {self.world} processes for {layers} layers, expected at most one "
                "a layer"
            )
        rank = self.rank if rank is None else rank
        return slice(rank * layers // self.world, (rank + 1) * layers // self.world)

    def items(self, items: int) -> slice:
        """Which of a step's items this process takes."""
        if self.mode == "heads":
            return slice(0, items)
        if items % self.world:
            raise ValueError(
                f"items: got {items} a step for {self.world} processes, expected a multiple"
            )
        share = items // self.world
        return slice(self.rank * share, (self.rank + 1) * share)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, in mode "data"."""
        if self.world == 1 or self.mode == "heads":
            return
        tensors = list(tensors)
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        flat /= self.world
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            t.copy_(part.view_as(t))

    def every_item(self, values: Tensor) -> Tensor:
        """Values [..., items] of the items of all processes, in their order."""
        if self.world == 1 or self.mode == "heads":
            return values
        parts = [torch.empty_like(values) for _ in range(self.world)]
        dist.all_gather(parts, values.contiguous())
        return torch.cat(parts, dim=-1)

    def every_layer(self, own: Tensor, layers: int) -> Tensor:
        """All layers [layers, ...] from each process's own."""
        if self.world == 1 or self.mode == "data":
            return own
        parts = []
        for rank in range(self.world):
            held = self.layers(layers, rank)
            part = own.new_empty(held.stop - held.start, *own.shape[1:])
            if rank == self.rank:
                part.copy_(own)
            dist.broadcast(part, src=rank)
            parts.append(part)
        return torch.cat(parts)
