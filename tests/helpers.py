"""What tests share: the list of backends, caches of every layout, and one comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

import kvp_ext
from python_ref import compaction, selection

# The one list of backends. Whatever is parametrised over it runs on all of them.
BACKENDS = ["cpu", "reference", "simt"]
TENSOR_CORE_BACKENDS = ("simt",)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = ["stacked", "list", "token_major", "slice", "interleaved"]


def assert_same(actual: Tensor, expected: Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Equal shapes, dtypes and special values, then values (bit for bit by default)."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} != {tuple(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{actual.dtype} != {expected.dtype}"
    if not actual.dtype.is_floating_point:
        different = (actual != expected).nonzero()
        assert len(different) == 0, f"{len(different)} differ, first at {different[0].tolist()}"
        return
    for name, special in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        assert torch.equal(special(actual), special(expected)), f"{name} in different places"
    finite = torch.isfinite(expected)
    a, e = actual[finite].double(), expected[finite].double()
    worst = (a - e).abs() - rtol * e.abs()
    if worst.numel():
        at = int(worst.argmax())
        assert worst[at] <= atol, f"{a[at].item()} != {e[at].item()} (rtol {rtol}, atol {atol})"


def layer_pair(
    B: int, H: int, T: int, D: int, Dv: int, dtype: torch.dtype, layout: str, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """K `[B, H, T, D]` and V `[B, H, T, Dv]` of one layer in the given storage layout."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    if layout == "token_major":
        return noise(B, T, H, D).transpose(1, 2), noise(B, T, H, Dv).transpose(1, 2)
    if layout == "slice":
        return noise(B, H, T + 5, D)[:, :, :T], noise(B, H, T + 3, Dv + 2)[:, :, :T, :Dv]
    if layout == "interleaved" and Dv == D:
        both = noise(B, T, 2, H, D)
        return both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
    return noise(B, H, T, D), noise(B, H, T, Dv)


def assert_scores(actual: Tensor, expected: Tensor, backend: str, cache_dtype: torch.dtype) -> None:
    """Scores in float64 precision, to what the backend's arithmetic allows.

    Tensor cores multiply 16-bit numbers: bf16 ones keep 8 bits (fp32 caches are rounded to bf16),
    fp16 ones 11. Their error is that of rounding weights and activations, so it is measured
    against the scores' size and not against a score that happens to be near 0.
    """
    if backend not in TENSOR_CORE_BACKENDS:
        return assert_same(actual.double(), expected, rtol=1e-4, atol=1e-5)
    relative = 2e-3 if cache_dtype == torch.float16 else 1e-2
    finite = expected[torch.isfinite(expected)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    assert_same(actual.double(), expected, atol=relative * largest)
    rms = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    error = (actual.double() - expected)[torch.isfinite(expected)]
    assert float(error.square().mean().sqrt() if error.numel() else 0.0) <= 0.5 * relative * rms


@dataclass
class Cache:
    """A cache with positions; `k` and `v` are one tensor or a list of layers."""

    k: Tensor | list[Tensor | None]
    v: Tensor | list[Tensor | None]
    pos: Tensor
    layers: int
    roots: list[Tensor] = field(default_factory=list)

    def clone(self) -> Cache:
        """A copy with the same strides, storage gaps included."""

        def copy(x: Tensor | list[Tensor | None]) -> Tensor | list[Tensor | None]:
            if isinstance(x, Tensor):
                return _clone_strided(x)
            return [None if t is None else _clone_strided(t) for t in x]

        return Cache(copy(self.k), copy(self.v), self.pos.clone(), self.layers)

    def rows(self) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Per-layer K and V."""
        return list(self.k), list(self.v)


def _clone_strided(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)


def make_cache(
    L: int = 2,
    B: int = 2,
    H: int = 2,
    T: int = 24,
    D: int = 8,
    Dv: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    layout: str = "stacked",
    pos: str = "shared",
    seed: int = 0,
) -> Cache:
    """A random cache. `pos`: "shared" [T], "batch" [B, T] or "head" [L, B, H, T]."""
    g = torch.Generator().manual_seed(seed)
    Dv = D if Dv is None else Dv
    pairs = [layer_pair(B, H, T, D, Dv, dtype, layout, g) for _ in range(L)]
    k: Tensor | list[Tensor | None] = [p[0] for p in pairs]
    v: Tensor | list[Tensor | None] = [p[1] for p in pairs]
    if layout == "stacked":
        k, v = torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
    positions = torch.arange(T)
    if pos == "batch":
        positions = positions.expand(B, T).clone()
    elif pos == "head":
        positions = positions.expand(L, B, H, T).clone()
    return Cache(k, v, positions, L)


def per_head_pos(pos: Tensor, L: int, B: int, H: int) -> Tensor:
    """`[L, B, H, T]` positions of any accepted form."""
    if pos.dim() == 1:
        pos = pos.expand(B, -1)
    if pos.dim() == 2:
        pos = pos[None, :, None].expand(L, -1, H, -1)
    return pos.clone()


def random_scores(L: int, B: int, H: int, T: int, *, seed: int = 0, ties: bool = False) -> Tensor:
    """fp32 scores; with `ties` only a few distinct values, ±0 and infinities among them."""
    g = torch.Generator().manual_seed(seed)
    if not ties:
        return torch.randn(L, B, H, T, generator=g)
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 1e-40])
    return values[torch.randint(len(values), (L, B, H, T), generator=g)]


@dataclass
class Expected:
    """What an eviction must leave behind; `k[l][b][h]` are the surviving rows."""

    k: list[list[list[Tensor]]]
    v: list[list[list[Tensor]]]
    pos: list[list[list[Tensor]]]
    lengths: Tensor
    kept: Tensor


def expected_eviction(
    cache: Cache,
    scores: Tensor,
    budget: int | list[int] | Tensor,
    *,
    lengths: int | Tensor | None = None,
    sinks: int = 4,
    recent: int = 16,
    mode: str = "per_head",
    order: str = "stable",
) -> Expected:
    """The definition: select by `python_ref`, then plain indexing of the untouched cache."""
    L, B, H, _T = scores.shape
    pos = per_head_pos(cache.pos, L, B, H)
    k, v = cache.rows()
    for i, layer in enumerate(k):
        if layer is None:
            pos[i] = -1
        else:
            pos[i, ..., layer.shape[2] :] = -1
    chosen = selection.select(
        scores, budget, pos=pos, lengths=lengths, sinks=sinks, recent=recent, mode=mode
    )
    rows = Expected([], [], [], chosen.lengths, torch.full_like(chosen.kept, -1))
    for i in range(L):
        for out in (rows.k, rows.v, rows.pos):
            out.append([[] for _ in range(B)])
        if k[i] is None:
            continue
        for b in range(B):
            for h in range(H):
                n = int(chosen.lengths[i, b, h])
                source = compaction.survivor_order(chosen.kept[i, b, h, :n], order).long()
                rows.kept[i, b, h, :n] = source
                rows.k[i][b].append(k[i][b, h, source].clone())
                rows.v[i][b].append(v[i][b, h, source].clone())
                rows.pos[i][b].append(pos[i, b, h, source])
    return rows


def assert_evicted(cache: Cache, result: kvp_ext.Evicted, expected: Expected) -> None:
    """The cache and the result hold exactly the expected survivors, bit for bit."""
    assert_same(result.lengths, expected.lengths)
    k, v = cache.rows()
    for i in range(cache.layers):
        if k[i] is None:
            continue
        B, H, _T = k[i].shape[:3]
        for b in range(B):
            for h in range(H):
                n = int(expected.lengths[i, b, h])
                assert_same(k[i][b, h, :n], expected.k[i][b][h])
                assert_same(v[i][b, h, :n], expected.v[i][b][h])
                assert_same(result.pos[i, b, h, :n].long(), expected.pos[i][b][h].long())
                assert bool((result.pos[i, b, h, n:] == -1).all())
                if result.kept is not None:
                    assert_same(result.kept[i, b, h, :n], expected.kept[i, b, h, :n])
                    assert bool((result.kept[i, b, h, n:] == -1).all())
                if cache.pos.dim() == 4:
                    assert_same(cache.pos[i, b, h, :n].long(), expected.pos[i][b][h].long())
                assert bool(torch.isfinite(k[i][b, h].float()).all())
