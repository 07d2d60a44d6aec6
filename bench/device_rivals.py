"""What the kernels are timed against: the same eviction in plain PyTorch, and other methods.

All take the rows of several layers at once, `k`, `v` `[R, T, D]`, as many as memory allows, so that
short caches are few launches; and all give the survivors in fresh tensors. Products are in the
cache's dtype, so they run on tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from device_target import Target
from device_timing import DTYPE, RECENT, SINKS, Caches, Geometry, Record, Timed, time_all
from torch import Tensor

import kvp_ext

Weights = dict[str, Tensor]
WINDOW = 64
PART_BYTES = 4 << 30  # of the largest intermediate, in fp32


def plain_weights(policy: kvp_ext.Policy, dtype: torch.dtype) -> Weights:
    """A policy of either family by rows, matrices `[L H, in, out]` and vectors `[L H, 1, n]`."""
    f = policy.folded
    w = {name: t.flatten(0, 1).to(dtype) for name, t in f.tensors.items()}
    w = {name: t.mT.contiguous() if t.dim() == 3 else t[:, None] for name, t in w.items()}
    sizes = [f.head_dim_k, f.head_dim_v, f.position_dim]
    parts = w.pop("input.weight").split(sizes, dim=1)
    w |= dict(zip(("input.k", "input.v", "input.p"), (p.contiguous() for p in parts), strict=True))
    table = f.positions.to(dtype)
    w["table"] = table.flatten(0, 1) if table.dim() == 4 else table.expand(len(parts[0]), -1, -1)
    return w


def score(w: Weights, eps: float, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
    """Scores `[R, T]` of rows at positions `[T]`, by `python_ref.fold`'s equations."""

    def normed(z: Tensor, name: str) -> Tensor:
        if f"{name}.weight" not in w:
            return z
        scale = (z.float().square().mean(-1, keepdim=True) + eps).rsqrt().to(z.dtype)
        return z * scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    features = w["table"][:, pos.clamp(max=w["table"].shape[1] - 1)]
    z = torch.baddbmm(w["input.bias"], features, w["input.p"])
    if "gain_k.weight" in w:
        for branch, x in (("k", k), ("v", v)):
            y = torch.baddbmm(w[f"gain_{branch}.bias"], x, w[f"gain_{branch}.weight"])
            norm = y.float().square().sum(-1, keepdim=True)
            gain = (norm + w[f"gain_{branch}.offset"].float()).rsqrt().to(x.dtype)
            z = z + gain * torch.baddbmm(w[f"input.gain_{branch}"], x, w[f"input.{branch}"])
    else:
        z = torch.baddbmm(torch.baddbmm(z, k, w["input.k"]), v, w["input.v"])
    z = torch.baddbmm(w["hidden.bias"], F.silu(normed(z, "norm1")), w["hidden.weight"])
    h = F.silu(normed(z, "norm2"))
    return torch.bmm(h, w["output.weight"].mT)[..., 0] + w["output.bias"][..., 0]


def gather_best(scores: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """topk, sort and gather of a quarter, pins included."""
    scores[:, :SINKS] = torch.inf
    scores[:, -RECENT:] = torch.inf
    index = scores.topk(k.shape[1] // 4, dim=-1, sorted=False).indices.sort(dim=-1).values
    k_index, v_index = (index[..., None].expand(-1, -1, x.shape[-1]) for x in (k, v))
    return k.gather(1, k_index), v.gather(1, v_index)


def by_policy(w: Weights, eps: float, pos: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Eviction by the policy."""
    return gather_best(score(w, eps, k, v, pos), k, v)


def votes(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention of the last queries.

    Args:
        q: `[L, H G, W, D]`.
        k: `[L, H, T, D]`.

    Returns:
        fp32 `[L, H, G, W, T]`.
    """
    L, H, T, D = k.shape
    window = q.shape[2]
    grouped = q.reshape(L * H, -1, D)
    logits = torch.bmm(grouped, k.reshape(L * H, T, D).mT).view(L, H, -1, window, T) * D**-0.5
    future = torch.ones(window, window, dtype=torch.bool, device=k.device).triu(1)
    logits[..., T - window :].masked_fill_(future, -torch.inf)
    return logits.softmax(-1, dtype=torch.float32)


def tova_scores(q: Tensor, k: Tensor) -> Tensor:
    """Attention of the last query, mean over a layer's heads: `[L, H, T]`."""
    return votes(q, k).mean((1, 2, 3))[:, None].repeat(1, k.shape[1], 1)


def snapkv_scores(q: Tensor, k: Tensor, pool: int = 5) -> Tensor:
    """Pooled attention of the window's queries; the window itself is kept: `[L, H, T]`."""
    mean = votes(q, k).mean(3)
    window = q.shape[2]
    prefix = mean[..., : k.shape[2] - window].flatten(0, 2)
    pooled = F.avg_pool1d(prefix[:, None], pool, stride=1, padding=pool // 2)[:, 0]
    scores = pooled.view(*mean.shape[:3], -1).mean(2)
    return F.pad(scores, (0, window), value=torch.inf)


def by_attention(
    scores: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Eviction of `[L, H, T, D]` by a method that sees the last queries."""
    return gather_best(scores(q, k).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))


@lru_cache(maxsize=1)
def compiled(target: Target) -> Callable[..., tuple[Tensor, Tensor]]:
    """`by_policy`, compiled once for any number of rows and slots, but for the policy's widths."""
    run = target.compile(by_policy)

    def evict(w: Weights, eps: float, pos: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for t in (k, v, *w.values()):
            torch._dynamo.maybe_mark_dynamic(t, 0)
        for t, dim in ((k, 1), (v, 1), (pos, 0)):
            torch._dynamo.maybe_mark_dynamic(t, dim)
        return run(w, eps, pos, k, v)

    return evict


def parts(layers: int, bytes_per_layer: int) -> list[slice]:
    """As many layers at a time as leave what is largest below PART_BYTES."""
    n = max(1, PART_BYTES // bytes_per_layer)
    return [slice(i, min(i + n, layers)) for i in range(0, layers, n)]


def rivals(
    geometry: Geometry, policy: kvp_ext.Policy, caches: Caches, target: Target
) -> Iterator[Timed]:
    """Plain PyTorch eager and compiled, TOVA and SnapKV."""
    H, T, layers = geometry.kv_heads, len(caches.pos), geometry.layers
    weights, eps = plain_weights(policy, DTYPE), policy.folded.norm_eps
    g = torch.Generator(target.device).manual_seed(1)
    shape = (layers, geometry.query_heads, min(WINDOW, T // 4), geometry.head_dim)
    q = torch.randn(shape, generator=g, dtype=DTYPE, device=target.device)

    def of_policy(evict: Callable[..., Any]) -> Callable[[Tensor, Tensor], Any]:
        groups = []
        widest = max(policy.hidden, policy.head_dim_k + policy.head_dim_v)
        for part in parts(layers, H * T * widest * 4):
            rows = slice(part.start * H, part.stop * H)
            groups.append((part, {name: t[rows] for name, t in weights.items()}))

        def run(k: Tensor, v: Tensor) -> Any:
            rows = [(k[part, 0].flatten(0, 1), v[part, 0].flatten(0, 1)) for part, _ in groups]
            return [evict(w, eps, caches.pos, *kv) for (_, w), kv in zip(groups, rows, strict=True)]

        return run

    def of_method(
        scores: Callable[[Tensor, Tensor], Tensor], q: Tensor
    ) -> Callable[[Tensor, Tensor], Any]:
        groups = parts(layers, q.shape[1] * q.shape[2] * T * 4)
        return lambda k, v: [by_attention(scores, q[p], k[p, 0], v[p, 0]) for p in groups]

    yield Timed("eager PyTorch", caches.next, of_policy(by_policy))
    yield Timed("TOVA", caches.next, of_method(tova_scores, q[:, :, -1:]))
    yield Timed("SnapKV", caches.next, of_method(snapkv_scores, q))
    yield Timed("compiled PyTorch", caches.next, of_policy(compiled(target)))


def run_rivals(target: Target, record: Record, until: float = math.inf) -> tuple[bool, str]:
    """See `time_all`."""
    return time_all(rivals, target, record, until)
