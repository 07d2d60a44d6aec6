"""`Policy`: one small scorer per (layer, KV head), in the form that every backend evaluates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from python_ref.agents import PaperAgent, SmallAgent
from python_ref.fold import FoldedPolicy, fold

from . import packing

Architecture: TypeAlias = Literal["paper", "small"]


class Policy:
    """A learned scorer of cache entries: one network per (layer, KV head).

    An entry's score depends only on its key, value and logical position, so it never changes
    while the entry lives. A policy holds the *folded* network (see `python_ref.fold`); trained
    agents are folded when they are exported.

    Attributes:
        folded: weights and geometry in fp32, `[layers, kv_heads, …]`.
        sinks, recent: entries at the two ends of a row that were pinned in training.
        name: what `policies()` or the file calls it; empty for one made in memory.
        provenance: how it was trained (JSON-serialisable).

    Source: Learning to Evict from Key-Value Cache (arXiv 2602.10238), section on the agents.
    """

    def __init__(
        self,
        folded: FoldedPolicy,
        *,
        sinks: int = 4,
        recent: int = 16,
        name: str = "",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        _check_int("sinks", sinks, 0)
        _check_int("recent", recent, 0)
        self.folded = folded
        self.sinks = sinks
        self.recent = recent
        self.name = name
        self.provenance: dict[str, Any] = dict(provenance or {})
        self._packed: Tensor | None = None
        self._fragments: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    @classmethod
    def random(
        cls,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        head_dim_v: int | None = None,
        architecture: Architecture = "small",
        max_position: int = 4095,
        seed: int = 0,
    ) -> Policy:
        """An untrained policy of the given geometry, for tests and benchmarks.

        Args:
            head_dim: channels of a key; of a value too, unless `head_dim_v` is given.
            architecture: "paper" (the paper's agent: 256 wide, LayerNorm, position table) or
                "small" (64 wide, smooth position features).
            max_position: longest trained position; later ones are clamped to it.
            seed: of the weights; equal seeds give equal policies.

        Raises:
            ValueError: an unknown architecture or a size below 1.
        """
        agents = {"paper": PaperAgent, "small": SmallAgent}
        if not isinstance(architecture, str) or architecture not in agents:
            raise ValueError(f"architecture is {architecture!r}, expected 'paper' or 'small'")
        head_dim_v = head_dim if head_dim_v is None else head_dim_v
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim}
        for name, size in (sizes | {"head_dim_v": head_dim_v}).items():
            _check_int(name, size, 1)
        _check_int("max_position", max_position, 0)
        _check_int("seed", seed, 0)
        agent = agents[architecture](
            layers=layers,
            kv_heads=kv_heads,
            head_dim_k=head_dim,
            head_dim_v=head_dim_v,
            position_rows=max_position + 1,
            generator=torch.Generator().manual_seed(seed),
        )
        return cls.from_agent(agent, provenance={"origin": f"random, seed {seed}"})

    @classmethod
    def from_agent(cls, agent: PaperAgent | SmallAgent, **kwargs: Any) -> Policy:
        """Folds trained agents into a policy; keyword arguments as for `Policy`."""
        return cls(fold(agent), **kwargs)

    @property
    def layers(self) -> int:
        """Layers of the model this policy was made for."""
        return self.folded.layers

    @property
    def kv_heads(self) -> int:
        """KV heads per layer."""
        return self.folded.kv_heads

    @property
    def head_dim_k(self) -> int:
        """Channels of a key."""
        return self.folded.head_dim_k

    @property
    def head_dim_v(self) -> int:
        """Channels of a value."""
        return self.folded.head_dim_v

    @property
    def hidden(self) -> int:
        """Width of both hidden layers."""
        return self.folded.hidden

    @property
    def max_position(self) -> int:
        """Longest trained position; later positions are scored as this one."""
        return self.folded.position_rows - 1

    @property
    def architecture(self) -> Architecture:
        """ "paper" with LayerNorm and branch gains, "small" without."""
        return "paper" if self.folded.gains else "small"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.folded.positions.device

    @property
    def parameters(self) -> int:
        """Folded weights of all heads together, the position features included."""
        count = sum(t.numel() for t in self.folded.tensors.values())
        return count + self.folded.positions.numel()

    def packed(self) -> Tensor:
        """The weights in the layout that kernels read: fp32 `[layers, kv_heads, block]`."""
        if self._packed is None:
            self._packed = packing.pack(self.folded)
        return self._packed

    def fragments(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The weights and position features in the form that tensor cores read.

        Args:
            dtype: `torch.bfloat16` or `torch.float16`, to which they are rounded.

        Returns:
            uint8 `[layers, kv_heads, block]` and `[…, max_position + 1, row]` on the policy's
            device. They are made once.

        Raises:
            RuntimeError: widths that no CUDA kernel exists for; names them.
        """
        if dtype not in self._fragments:
            self._fragments[dtype] = packing.fragments(self.folded, self.packed(), dtype)
        return self._fragments[dtype]

    def to(self, device: torch.device | str) -> Policy:
        """This policy with its weights on `device`."""
        if self.device == torch.device(device):
            return self
        return self._replace(
            tensors={name: t.to(device) for name, t in self.folded.tensors.items()},
            positions=self.folded.positions.to(device),
        )

    def shard(self, rank: int, world: int) -> Policy:
        """The part for one rank of a tensor-parallel group, split over KV heads.

        Ranks hold `kv_heads / world` consecutive heads; with more ranks than heads, each head
        is replicated over `world / kv_heads` consecutive ranks.

        Raises:
            ValueError: `rank` out of range, or heads and ranks that do not divide.
        """
        H = self.kv_heads
        for label, value in (("rank", rank), ("world", world)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{label} is {value!r}, expected an int")
        if world < 1 or (H % world and world % H):
            raise ValueError(
                f"world is {world}, expected a divisor or a multiple of the {H} KV heads"
            )
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank}, expected 0 <= rank < world = {world}")
        count, start = max(1, H // world), rank * H // world

        def part(t: Tensor) -> Tensor:
            return t[:, start : start + count].contiguous()

        positions = self.folded.positions
        return self._replace(
            kv_heads=count,
            tensors={name: part(t) for name, t in self.folded.tensors.items()},
            positions=positions if self.folded.shared_positions else part(positions),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Writes one safetensors file; see `kvp_ext.policy_file` for its contents."""
        from .policy_file import write

        write(self, path)

    def _replace(self, **changes: Any) -> Policy:
        return Policy(
            dataclasses.replace(self.folded, **changes),
            sinks=self.sinks,
            recent=self.recent,
            name=self.name,
            provenance=self.provenance,
        )

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return (
            f"Policy({name}{self.architecture}, layers={self.layers}, kv_heads={self.kv_heads}, "
            f"head_dim={self.head_dim_k}"
            + (f"/{self.head_dim_v}" if self.head_dim_v != self.head_dim_k else "")
            + f", hidden={self.hidden}, max_position={self.max_position}, device={self.device})"
        )


def _check_int(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, expected an int")
    if not least <= value < 2**31:
        raise ValueError(f"{name} is {value}, expected {least} <= {name} < 2**31")
