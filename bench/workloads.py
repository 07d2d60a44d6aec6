"""The caches that benchmarks run on, and the plain-PyTorch competitors of the fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import kvp_ext


@dataclass(frozen=True)
class Geometry:
    """Shape of a model's cache."""

    name: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int


SMOLLM2 = Geometry("SmolLM2-135M", 30, 9, 3, 64)
QWEN2_5_7B = Geometry("Qwen2.5-7B", 28, 28, 4, 128)
GEOMETRIES = {g.name: g for g in (SMOLLM2, QWEN2_5_7B)}

SINKS, RECENT = 4, 16


class Workload:
    """A cache of one sequence that can be restored after each in-place eviction."""

    def __init__(self, geometry: Geometry, tokens: int, dtype: torch.dtype) -> None:
        g = torch.Generator().manual_seed(0)
        shape = (geometry.layers, 1, geometry.kv_heads, tokens, geometry.head_dim)
        self.geometry, self.tokens = geometry, tokens
        self.k = torch.empty(shape, dtype=dtype)
        self.v = torch.empty(shape, dtype=dtype)
        for layer in range(geometry.layers):
            self.k[layer] = torch.randn(shape[1:], generator=g)
            self.v[layer] = torch.randn(shape[1:], generator=g)
        self.pos = torch.arange(tokens)
        self._k, self._v = self.k.clone(), self.v.clone()

    def restore(self) -> None:
        """Undoes an eviction; belongs outside the timed region."""
        self.k.copy_(self._k)
        self.v.copy_(self._v)

    def policy(self, architecture: str) -> kvp_ext.Policy:
        """An untrained policy of this geometry; weights do not change the time."""
        return kvp_ext.Policy.random(
            layers=self.geometry.layers,
            kv_heads=self.geometry.kv_heads,
            head_dim=self.geometry.head_dim,
            architecture=architecture,  # type: ignore[arg-type]
        )

    def queries(self, window: int) -> Tensor:
        """Post-RoPE queries `[L, B, Hq, window, D]` of the last tokens."""
        g = torch.Generator().manual_seed(1)
        geometry = self.geometry
        shape = (geometry.layers, 1, geometry.query_heads, window, geometry.head_dim)
        return torch.randn(shape, generator=g, dtype=torch.float32).to(self.k.dtype)


class EagerPolicy:
    """The small policy in plain PyTorch, in the best form we know for a CPU.

    One batched matmul per layer of the network over all heads at once; the weights are the same
    folded ones, so it does no more arithmetic than the kernel.
    """

    def __init__(self, policy: kvp_ext.Policy, pos: Tensor) -> None:
        w = {n: t.flatten(0, 1) for n, t in policy.folded.tensors.items()}
        sizes = [policy.head_dim_k, policy.head_dim_v, policy.folded.position_dim]
        first = w["input.weight"].mT.split(sizes, dim=1)
        self.w_k, self.w_v, self.w_p = (part.contiguous() for part in first)
        self.b_1 = w["input.bias"][:, None]
        self.w_2, self.b_2 = w["hidden.weight"].mT.contiguous(), w["hidden.bias"][:, None]
        self.w_3, self.b_3 = w["output.weight"][..., None], w["output.bias"][:, None]
        self.table = policy.folded.positions
        self.pos = pos

    def features(self) -> Tensor:
        """Position features `[T, F]`, the same for all rows."""
        return self.table[self.pos.clamp(max=len(self.table) - 1)]

    def score(self, k: Tensor, v: Tensor) -> Tensor:
        """Scores `[R, T]` of rows k, v `[R, T, D]`, all at once."""
        z = torch.baddbmm(self.b_1, self.features().expand(len(k), -1, -1), self.w_p)
        z = torch.baddbmm(z, k, self.w_k)
        h = F.silu(torch.baddbmm(z, v, self.w_v))
        h = F.silu(torch.baddbmm(self.b_2, h, self.w_2))
        return torch.baddbmm(self.b_3, h, self.w_3).squeeze(-1)

    def score_row(self, row: int, features: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Scores `[T]` of one row, in place where PyTorch can."""
        z = torch.addmm(self.b_1[row], features, self.w_p[row])
        z = F.silu(z.addmm_(k, self.w_k[row]).addmm_(v, self.w_v[row]), inplace=True)
        h = F.silu(torch.addmm(self.b_2[row], z, self.w_2[row]), inplace=True)
        return torch.addmm(self.b_3[row], h, self.w_3[row]).squeeze(-1)


def select_and_gather(scores: Tensor, k: Tensor, v: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """topk, sort and gather over rows `[R, T]`, pins included: the usual plain eviction."""
    scores[:, :SINKS] = torch.inf
    scores[:, -RECENT:] = torch.inf
    index = scores.topk(budget, dim=-1, sorted=False).indices.sort(dim=-1).values
    index = index[..., None].expand(-1, -1, k.shape[-1])
    return k.gather(1, index), v.gather(1, index)


def eager(policy: EagerPolicy, k: Tensor, v: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """All heads at once."""
    return select_and_gather(policy.score(k, v), k, v, budget)


def chunked(policy: EagerPolicy, k: Tensor, v: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """A head at a time: activations of one head fit the cache, which helps on a CPU."""
    features = policy.features()
    scores = torch.stack([policy.score_row(r, features, k[r], v[r]) for r in range(k.shape[0])])
    return select_and_gather(scores, k, v, budget)


def competitors(policy: EagerPolicy) -> dict[str, Callable[[Tensor, Tensor, int], object]]:
    """Every plain form of the same eviction; the kernel is compared with the fastest."""
    compiled = torch.compile(eager)
    return {
        "eager": lambda k, v, budget: eager(policy, k, v, budget),
        "row-chunked eager": lambda k, v, budget: chunked(policy, k, v, budget),
        "torch.compile": lambda k, v, budget: compiled(policy, k, v, budget),
    }
