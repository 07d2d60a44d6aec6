"""What the kernels are timed against on a GPU: the same eviction in plain PyTorch.

All take one layer at a time, `k`, `v` `[H, T, D]`, as a model's cache gives them, and return the
survivors in fresh tensors. Products are in the cache's dtype, so they run on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import kvp_ext

SINKS, RECENT = 4, 16
Evict = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


class PlainPolicy:
    """A policy of either family by batched matrix products over the heads of a layer."""

    def __init__(self, policy: kvp_ext.Policy, dtype: torch.dtype, pos: Tensor) -> None:
        f = policy.folded
        self._w = {name: t.to(dtype) for name, t in f.tensors.items()}
        sizes = [f.head_dim_k, f.head_dim_v, f.position_dim]
        # Contiguous, as the product wants them.
        self._first = [
            part.mT.contiguous() for part in self._w["input.weight"].split(sizes, dim=-1)
        ]
        self._second = self._w["hidden.weight"].mT.contiguous()
        self._gain = {
            branch: self._w[f"gain_{branch}.weight"].mT.contiguous()
            for branch in ("k", "v")
            if f.gains
        }
        self._norms, self._eps = f.norms, f.norm_eps
        rows = f.positions[..., pos.clamp(max=f.position_rows - 1), :].to(dtype)
        self._features = rows if rows.dim() == 4 else rows.expand(f.layers, f.kv_heads, -1, -1)

    def score(self, layer: int, k: Tensor, v: Tensor) -> Tensor:
        """Scores `[H, T]` of one layer."""
        w = self._w

        def bias(name: str) -> Tensor:
            return w[name][layer][:, None]

        first_k, first_v, first_p = (part[layer] for part in self._first)
        z = torch.baddbmm(bias("input.bias"), self._features[layer], first_p)
        if self._gain:
            for branch, x, first in (("k", k, first_k), ("v", v, first_v)):
                y = torch.baddbmm(bias(f"gain_{branch}.bias"), x, self._gain[branch][layer])
                norm = y.float().square().sum(-1, keepdim=True)
                gain = (norm + bias(f"gain_{branch}.offset").float()).rsqrt().to(x.dtype)
                z = z + gain * (torch.bmm(x, first) + bias(f"input.gain_{branch}"))
        else:
            z = torch.baddbmm(torch.baddbmm(z, k, first_k), v, first_v)
        h = F.silu(self._normed(z, "norm1", layer))
        z = torch.baddbmm(bias("hidden.bias"), h, self._second[layer])
        h = F.silu(self._normed(z, "norm2", layer))
        return torch.bmm(h, w["output.weight"][layer][..., None])[..., 0] + w["output.bias"][layer]

    def _normed(self, z: Tensor, name: str, layer: int) -> Tensor:
        if not self._norms:
            return z
        scale = (z.float().square().mean(-1, keepdim=True) + self._eps).rsqrt().to(z.dtype)
        weight, bias = (self._w[f"{name}.{part}"][layer][:, None] for part in ("weight", "bias"))
        return z * scale * weight + bias


def gather_best(scores: Tensor, k: Tensor, v: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """topk, sort and gather, pins included."""
    scores[:, :SINKS] = torch.inf
    scores[:, -RECENT:] = torch.inf
    index = scores.topk(budget, dim=-1, sorted=False).indices.sort(dim=-1).values[..., None]
    return k.gather(1, index.expand(-1, -1, k.shape[-1])), v.gather(
        1, index.expand(-1, -1, v.shape[-1])
    )


def by_policy(policy: PlainPolicy, budget: int) -> Evict:
    """Eviction by the policy."""
    return lambda layer, k, v: gather_best(policy.score(layer, k, v), k, v, budget)


def votes(k: Tensor, q: Tensor) -> Tensor:
    """Attention of queries `[Hq, W, D]` over keys `[H, T, D]`: `[H, Hq / H, W, T]`."""
    grouped = q.view(k.shape[0], -1, k.shape[-1])  # [H, G W, D]
    logits = torch.bmm(grouped, k.mT) * k.shape[-1] ** -0.5
    return logits.float().softmax(-1).view(k.shape[0], -1, q.shape[1], k.shape[1])


def by_tova(q: Tensor, budget: int) -> Evict:
    """Eviction by the attention of the last query, mean over the heads; q `[L, Hq, 1, D]`."""

    def evict(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        mean = votes(k, q[layer]).mean((0, 1, 2))
        return gather_best(mean.expand(k.shape[:2]).clone(), k, v, budget)

    return evict


def by_snapkv(q: Tensor, budget: int, pool: int = 5) -> Evict:
    """Eviction by the pooled attention of a window of queries; q `[L, Hq, W, D]`."""

    def evict(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        mean = F.avg_pool1d(votes(k, q[layer]).mean(2), pool, stride=1, padding=pool // 2).mean(1)
        return gather_best(mean, k, v, budget)

    return evict
