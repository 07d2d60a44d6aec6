"""The one place that turns what a user passed into a checked `Call`.

Two kinds of mistakes exist and each is caught in one place: what only Python can see (types,
dtypes, devices, shapes that do not agree) is checked here; what concerns memory and geometry
(strides, overlap, ranges of lengths and budgets, the policy's fit) is checked by `kvp_validate`
in libkvp, for Python and C callers alike. Both run before the first byte moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .policy import Policy

Cache: TypeAlias = Tensor | Sequence[Tensor | None]
Positions: TypeAlias = Tensor | Sequence[Tensor | None]
Budget: TypeAlias = int | Sequence[int] | Tensor
Mode: TypeAlias = Literal["per_head", "union", "model"]
Order: TypeAlias = Literal["stable", "any"]

MODES: tuple[Mode, ...] = ("per_head", "union", "model")
ORDERS: tuple[Order, ...] = ("stable", "any")
CACHE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
POSITION_DTYPES = (torch.int32, torch.int64)


@dataclass(slots=True)
class Call:
    """Checked arguments of one operation, in the single form that every backend takes.

    Attributes:
        k, v: one `[B, H, T_l, D]` tensor per layer; `None` for a skipped layer.
        pos: one `[B, H, T_l]` tensor per layer, stride 0 where positions are shared.
        pos_per_head: whether `pos` belongs to the heads and is compacted in place.
        scores: one fp32 `[B, H, T_l]` tensor per layer, or `None`.
        lengths: int32 `[L, B, H]` (any strides), or `None` for every entry with pos >= 0.
        budget: entries kept; int, or int32 `[L, B, H]` (any strides).
        capacity: slots of each row of the results (N).
    """

    device: torch.device
    n_layers: int
    n_batch: int
    n_heads: int
    slots: list[int]
    k: list[Tensor | None]
    v: list[Tensor | None]
    pos: list[Tensor | None]
    pos_per_head: bool
    scores: list[Tensor | None] | None
    lengths: Tensor | None
    budget: int | Tensor
    mode: Mode
    order: Order
    sinks: int
    recent: int
    capacity: int
    policy: Policy | None

    @property
    def pos_dtype(self) -> torch.dtype:
        """Integer type of all positions; int64 where every layer is skipped."""
        return next((p.dtype for p in self.pos if p is not None), torch.int64)

    def present(self) -> list[int]:
        """Indices of the layers that are not skipped."""
        return [i for i, p in enumerate(self.pos) if p is not None]


def prepare(
    *,
    k_cache: Cache | None,
    v_cache: Cache | None,
    pos: Positions,
    scores: Cache | None = None,
    lengths: int | Tensor | None = None,
    budget: Budget = 0,
    sinks: int = 0,
    recent: int = 0,
    mode: str = "per_head",
    order: str = "stable",
    policy: Policy | None = None,
) -> Call:
    """Checks the arguments of any operation and returns them as a `Call`.

    `select` passes no caches; the layers, rows and slots then come from `scores`.

    Raises:
        TypeError, ValueError: naming the argument, what it was and what was expected.
    """
    if k_cache is not None:
        assert v_cache is not None
        k = _layers("k_cache", k_cache, 5, "[L, B, H, T, D]")
        v = _layers("v_cache", v_cache, 5, "[L, B, H, T, D]")
        _check_caches(k, v)
        lead, rows_name = k, "k_cache"
    else:
        k = v = []
        lead, rows_name = [], "scores"
    score_layers = None
    if scores is not None:
        score_layers = _layers("scores", scores, 4, "[L, B, H, T]")
        for i, s in enumerate(score_layers):
            if s is not None and s.dtype != torch.float32:
                raise TypeError(f"{_at('scores', i)} has dtype {s.dtype}, expected torch.float32")
        lead = lead or score_layers
    if not k:
        k = v = [None] * len(lead)
    n_layers = len(lead)
    first = next((t for t in lead if t is not None), None)
    if first is None:
        n_batch = n_heads = 0
        device = torch.device("cpu")
    else:
        n_batch, n_heads, device = first.shape[0], first.shape[1], first.device
    slots = [0 if t is None else t.shape[2] for t in lead]

    if score_layers is not None and lead is not score_layers:
        score_layers = _fit_scores(score_layers, lead, device)
    pos_layers, per_head = _positions(pos, lead, rows_name, device)
    _check_choice("mode", mode, MODES)
    _check_choice("order", order, ORDERS)
    sinks = check_count("sinks", sinks)
    recent = check_count("recent", recent)
    shape = (n_layers, n_batch, n_heads)
    checked_budget = _budget(budget, mode, shape, device)
    if policy is not None:
        if not isinstance(policy, Policy):
            raise TypeError(
                f"policy is {type(policy).__name__}, expected a kvp_ext.Policy "
                "(kvp_ext.load_policy(name_or_path) returns one)"
            )
        if first is not None and policy.device != device:
            raise RuntimeError(
                f"policy is on {policy.device}, expected the cache's device {device}; "
                f'use policy.to("{device}")'
            )
    return Call(
        device=device,
        n_layers=n_layers,
        n_batch=n_batch,
        n_heads=n_heads,
        slots=slots,
        k=k,
        v=v,
        pos=pos_layers,
        pos_per_head=per_head,
        scores=score_layers,
        lengths=_lengths(lengths, shape, device),
        budget=checked_budget,
        mode=mode,  # type: ignore[arg-type]
        order=order,  # type: ignore[arg-type]
        sinks=sinks,
        recent=recent,
        capacity=_capacity(checked_budget, mode, max(slots, default=0)),
        # Without a layer there is nothing to score, and no geometry to compare with.
        policy=policy if first is not None else None,
    )


def _at(name: str, layer: int) -> str:
    return f"{name}[{layer}]"


def _plain(name: str, tensor: object) -> Tensor:
    """A strided tensor that may be written through its pointer."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {type(tensor).__name__}, expected a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} has layout {tensor.layout}, expected torch.strided")
    if tensor.is_neg():
        raise TypeError(f"{name} is a lazily negated view, expected {name}.resolve_neg()")
    if tensor.is_meta:
        raise TypeError(f"{name} is a meta tensor, expected one with memory")
    if tensor.requires_grad:
        raise ValueError(
            f"{name} requires grad, expected a tensor outside autograd; eviction works in place: "
            "pass tensor.detach() or run the model under torch.no_grad()"
        )
    return tensor


def _layers(name: str, value: object, ndim: int, shape: str) -> list[Tensor | None]:
    """A stacked tensor or a sequence of layers, as a list of per-layer tensors."""
    if isinstance(value, Tensor):
        _plain(name, value)
        if value.dim() != ndim:
            raise ValueError(
                f"{name} has shape {list(value.shape)}, expected {shape} "
                f"or a list of {ndim - 1}-dimensional layers"
            )
        return list(value.unbind(0))
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(
            f"{name} is {type(value).__name__}, expected a tensor {shape} or a list of layers"
        )
    layers: list[Tensor | None] = []
    for i, item in enumerate(value):
        if item is None:
            layers.append(None)
            continue
        tensor = _plain(_at(name, i), item)
        if tensor.dim() != ndim - 1:
            raise ValueError(
                f"{_at(name, i)} has shape {list(tensor.shape)}, "
                f"expected {ndim - 1} dimensions {shape.replace('L, ', '')}"
            )
        layers.append(tensor)
    return layers


def _check_caches(k: list[Tensor | None], v: list[Tensor | None]) -> None:
    if len(k) != len(v):
        raise ValueError(f"v_cache has {len(v)} layers, expected {len(k)} like k_cache")
    first: tuple[int, Tensor, Tensor] | None = None
    for i, (ki, vi) in enumerate(zip(k, v, strict=True)):
        if (ki is None) != (vi is None):
            raise ValueError(
                f"{_at('k_cache', i)} and {_at('v_cache', i)}: one is None and one is a tensor, "
                "expected both or neither"
            )
        if ki is None or vi is None:
            continue
        for name, t in (("k_cache", ki), ("v_cache", vi)):
            if t.shape[3] == 0:
                raise ValueError(
                    f"{_at(name, i)} has shape {list(t.shape)}, expected a head dim of at least 1"
                )
        if first is None:
            if ki.dtype not in CACHE_DTYPES:
                raise TypeError(
                    f"{_at('k_cache', i)} has dtype {ki.dtype}, expected one of "
                    + ", ".join(str(d) for d in CACHE_DTYPES)
                )
            first = (i, ki, vi)
        _check_like(i, ki, vi, *first)


def _check_like(i: int, k: Tensor, v: Tensor, first: int, k_first: Tensor, v_first: Tensor) -> None:
    """Layer i has the dtype, device, rows and head dims of the first one; T is its own."""
    (B, H, T, Dk), like = k.shape, f"k_cache[{first}]"
    for name, t in (("k_cache", k), ("v_cache", v)):
        if t.dtype != k_first.dtype:
            raise TypeError(
                f"{_at(name, i)} has dtype {t.dtype}, expected {k_first.dtype} like {like}"
            )
        if t.device != k_first.device:
            raise RuntimeError(
                f"{_at(name, i)} is on {t.device}, expected {k_first.device} like {like}"
            )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"{_at('v_cache', i)} has shape {list(v.shape)}, expected [B, H, T] = {[B, H, T]} "
            f"like {_at('k_cache', i)}"
        )
    want = [*k_first.shape[:2], k_first.shape[3]]
    if [B, H, Dk] != want:
        raise ValueError(
            f"{_at('k_cache', i)} has shape {list(k.shape)}, expected [B, H, *, D] = "
            f"[{want[0]}, {want[1]}, *, {want[2]}] like {like}"
        )
    if v.shape[3] != v_first.shape[3]:
        raise ValueError(
            f"{_at('v_cache', i)} has head dim {v.shape[3]}, expected {v_first.shape[3]} like "
            f"{_at('v_cache', first)}"
        )


def _fit_scores(
    scores: list[Tensor | None], lead: list[Tensor | None], device: torch.device
) -> list[Tensor | None]:
    """Per-layer scores of exactly each layer's slots (a stacked buffer may be wider)."""
    if len(scores) != len(lead):
        raise ValueError(f"scores has {len(scores)} layers, expected {len(lead)} like k_cache")
    fitted: list[Tensor | None] = []
    for i, (s, row) in enumerate(zip(scores, lead, strict=True)):
        if row is None:
            fitted.append(None)
            continue
        if s is None:
            raise ValueError(f"{_at('scores', i)} is None, expected a tensor like its layer")
        if s.device != device:
            raise RuntimeError(f"{_at('scores', i)} is on {s.device}, expected {device}")
        if s.shape[:2] != row.shape[:2] or s.shape[2] < row.shape[2]:
            raise ValueError(
                f"{_at('scores', i)} has shape {list(s.shape)}, expected [B, H, T] = "
                f"{list(row.shape[:3])}"
            )
        fitted.append(s[:, :, : row.shape[2]])
    return fitted


def _positions(
    pos: object, lead: list[Tensor | None], rows_name: str, device: torch.device
) -> tuple[list[Tensor | None], bool]:
    """Per-layer `[B, H, T_l]` views of the positions, and whether heads own them."""
    n_layers = len(lead)
    if isinstance(pos, Tensor):
        _plain("pos", pos)
        if pos.dim() == 4:
            if pos.shape[0] != n_layers:
                raise ValueError(
                    f"pos has shape {list(pos.shape)}, expected {n_layers} layers like {rows_name}"
                )
            items: list[tuple[str, Tensor]] = [("pos", p) for p in pos.unbind(0)]
        elif pos.dim() in (1, 2):
            items = [("pos", pos)] * n_layers
        else:
            raise ValueError(
                f"pos has shape {list(pos.shape)}, expected [T], [B, T] or [L, B, H, T]"
            )
        per_head = pos.dim() == 4
    elif isinstance(pos, Sequence):
        if len(pos) != n_layers:
            raise ValueError(f"pos has {len(pos)} layers, expected {n_layers} like {rows_name}")
        items = []
        for i, (p, row) in enumerate(zip(pos, lead, strict=True)):
            if row is None or p is None:
                if row is not None:
                    raise ValueError(f"{_at('pos', i)} is None, expected a tensor like its layer")
                items.append((_at("pos", i), torch.empty(0, dtype=torch.int64)))
                continue
            items.append((_at("pos", i), _plain(_at("pos", i), p)))
        ranks = {t.dim() for (_, t), row in zip(items, lead, strict=True) if row is not None}
        if len(ranks) > 1 or not ranks <= {1, 2, 3}:
            raise ValueError(
                f"pos holds layers of {sorted(ranks)} dimensions, expected every layer to be "
                "[T], [B, T] or [B, H, T]"
            )
        per_head = ranks == {3}
    else:
        raise TypeError(
            f"pos is {type(pos).__name__}, expected an int32 or int64 tensor of logical positions"
        )
    layers: list[Tensor | None] = []
    dtype: torch.dtype | None = None
    seen: tuple[Tensor, torch.Size, Tensor] | None = None  # layers mostly share one tensor
    for (name, p), row in zip(items, lead, strict=True):
        if row is None:
            layers.append(None)
            continue
        if seen is not None and p is seen[0] and row.shape[:3] == seen[1]:
            layers.append(seen[2])
            continue
        if p.dtype not in POSITION_DTYPES:
            raise TypeError(f"{name} has dtype {p.dtype}, expected torch.int32 or torch.int64")
        if dtype is not None and p.dtype != dtype:
            raise TypeError(f"{name} has dtype {p.dtype}, expected {dtype} like the first layer")
        dtype = p.dtype
        if p.device != device:
            raise RuntimeError(f"{name} is on {p.device}, expected {device} like {rows_name}")
        B, H, T = row.shape[:3]
        want = [(T,), (B, T), (B, H, T)][p.dim() - 1]
        if tuple(p.shape) != want:
            raise ValueError(
                f"{name} has shape {list(p.shape)} per layer, expected {list(want)} "
                f"for rows of {rows_name} [B, H, T] = {[B, H, T]}"
            )
        # libkvp reads a stride of 0 as "shared", so strides say here what the user's shape said,
        # even where B or H is 1.
        if p.dim() == 3:
            if T and any(n > 1 and s == 0 for n, s in zip(want, p.stride(), strict=True)):
                raise ValueError(
                    f"{name} has strides {p.stride()} per layer (expanded memory), expected memory "
                    "of its own for each head; pass [T] or [B, T] for shared positions"
                )
            strides = tuple(
                s if n > 1 else max(1, T) for n, s in zip(want, p.stride(), strict=True)
            )
            p = p.as_strided(want, strides)
        else:
            batch_stride = p.stride(0) if p.dim() == 2 and B > 1 else 0
            shared, p = p, p.as_strided((B, H, T), (batch_stride, 0, p.stride(-1)))
            seen = (shared, row.shape[:3], p)
        layers.append(p)
    return layers, per_head


def check_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, expected an int")
    if not 0 <= value < 2**31:
        raise ValueError(f"{name} is {value}, expected 0 <= {name} < 2**31")
    return value


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def _to_int32(count: int) -> int:
    """Counts beyond int32 stay beyond any row, and below its floor, instead of wrapping."""
    return max(-(2**31), min(count, 2**31 - 1))


def _on_device(values: list[int], device: torch.device) -> Tensor:
    """int32 `[n]`. A copy from the host would wait for the device, and would be in no graph."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.int32, device=device)
    filled = [torch.full((1,), v, dtype=torch.int32, device=device) for v in values]
    return torch.cat(filled) if filled else torch.empty(0, dtype=torch.int32, device=device)


def _counts_tensor(name: str, value: Tensor, device: torch.device) -> Tensor:
    _plain(name, value)
    if value.dtype not in POSITION_DTYPES:
        raise TypeError(f"{name} has dtype {value.dtype}, expected torch.int32 or torch.int64")
    if value.device != device:
        raise RuntimeError(f"{name} is on {value.device}, expected the cache's device {device}")
    if value.dtype == torch.int32:
        return value
    return value.clamp(-(2**31), 2**31 - 1).to(torch.int32)


def _lengths(value: object, shape: tuple[int, int, int], device: torch.device) -> Tensor | None:
    """int32 `[L, B, H]` valid entries per row; from None, an int, `[B]` or `[L, B, H]`."""
    if value is None:
        return None
    _L, B, _H = shape
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.full((), _to_int32(value), dtype=torch.int32, device=device)
    if not isinstance(value, Tensor):
        raise TypeError(f"lengths is {type(value).__name__}, expected an int or an integer tensor")
    counts = _counts_tensor("lengths", value, device)
    if counts.dim() == 0:
        return counts.expand(shape)
    if counts.shape == (B,):
        return counts.view(1, B, 1).expand(shape)
    if counts.shape == shape:
        return counts
    raise ValueError(
        f"lengths has shape {list(counts.shape)}, expected [B] = {[B]} or [L, B, H] = {list(shape)}"
    )


def _budget(
    value: object, mode: str, shape: tuple[int, int, int], device: torch.device
) -> int | Tensor:
    """An int, or int32 `[L, B, H]`; see `kvp_ext.evict_` for the accepted shapes."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"budget is {value}, expected a number of entries >= 0")
        return _to_int32(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if any(isinstance(item, bool) or not isinstance(item, int) for item in value):
            raise TypeError(f"budget is {value!r}, expected ints")
        value = _on_device([_to_int32(v) for v in value], device)
    if not isinstance(value, Tensor):
        hint = "; a ratio is turned into entries by kvp_ext.budget_from_ratio"
        raise TypeError(
            f"budget is {value!r}, expected an int, a list of ints or an integer tensor"
            + (hint if isinstance(value, float) else "")
        )
    counts = _counts_tensor("budget", value, device)
    L, B, H = shape
    axes = {"per_head": ("L", "L H", "L B H"), "union": ("L", "L B"), "model": ("B",)}[mode]
    size = {"L": L, "B": B, "H": H}
    if counts.dim() == 0:
        return counts.expand(shape)
    accepted = []
    for dims in (a.split() for a in axes):
        want = [size[d] for d in dims]
        if list(counts.shape) == want:
            index = tuple(slice(None) if d in dims else None for d in size)
            return counts[index].expand(shape)
        accepted.append(f"[{', '.join(dims)}] = {want}")
    raise ValueError(
        f"budget has shape {list(counts.shape)}, expected an int or "
        f'{" or ".join(accepted)} for mode="{mode}"'
    )


def _capacity(budget: int | Tensor, mode: str, slots: int) -> int:
    """Slots of a result row: no more than a row can keep, without asking a device."""
    if mode == "model" or (isinstance(budget, Tensor) and budget.device.type != "cpu"):
        return slots
    largest = budget if isinstance(budget, int) else int(budget.max()) if budget.numel() else 0
    return min(slots, max(1, largest))
