"""The inputs that parity is checked on: adversarial scores, memory layouts, padding, policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Layers = list[Tensor | None]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MODES = ("per_head", "union", "model")
ORDERS = ("stable", "any")
PINS = ((0, 0), (4, 16), (2, 3), (1000, 50))


@dataclass
class Case:
    """Arguments of one eviction, on the CPU.

    Attributes:
        k, v: one tensor `[L, B, H, T, D]` or L layers, None among them.
        pos: `[T]`, `[B, T]`, `[L, B, H, T]`, or L layers `[B, H, T_l]`.
        scores: fp32 `[L, B, H, T]` of the longest layer. Without an architecture they rank;
            with one, those that are NaN are computed, and None computes all.
        architecture: of a random policy.
    """

    name: str
    k: Tensor | Layers
    v: Tensor | Layers
    pos: Tensor | Layers
    budget: int | list[int] | Tensor
    scores: Tensor | None = None
    architecture: str | None = None
    lengths: int | Tensor | None = None
    mode: str = "per_head"
    order: str = "stable"
    sinks: int = 0
    recent: int = 0

    def layers(self) -> list[tuple[int, Tensor, Tensor]]:
        """Index, K and V of every layer that is not skipped."""
        pairs = enumerate(zip(self.k, self.v, strict=True))
        return [(i, k, v) for i, (k, v) in pairs if k is not None and v is not None]

    def shape(self) -> tuple[int, int, int, int]:
        """[L, B, H, T] with T of the longest layer."""
        layers = self.layers()
        slots = max(k.shape[2] for _, k, _ in layers)
        return (len(self.k), *layers[0][1].shape[:2], slots)

    def row_positions(self) -> Tensor:
        """[L, B, H, T]; slots that a layer lacks are padding."""
        full = torch.full(self.shape(), -1, dtype=torch.int64)
        for i, k, _ in self.layers():
            p = self.pos[i] if not isinstance(self.pos, Tensor) or self.pos.dim() == 4 else self.pos
            assert p is not None
            full[i, ..., : k.shape[2]] = p[:, None] if p.dim() == 2 else p
        return full

    def has_own_positions(self) -> bool:
        """Whether heads own their positions, so that they move in place."""
        return not isinstance(self.pos, Tensor) or self.pos.dim() == 4


# ---- scores ------------------------------------------------------------------------------------

Shape = tuple[int, ...]


def _from_bits(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)


def _some(values: list[float], shape: Shape, g: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), shape, generator=g)]


def _with_nans(shape: Shape, g: torch.Generator) -> Tensor:
    """A third are quiet NaNs of either sign and any payload."""
    payload = torch.randint(1 << 22, shape, generator=g) | 0x7FC00000
    sign = torch.randint(2, shape, generator=g) * -(1 << 31)
    is_nan = torch.rand(shape, generator=g) < 1 / 3
    return torch.where(is_nan, _from_bits(payload + sign), torch.randn(shape, generator=g))


SCORES: dict[str, Callable[[Shape, torch.Generator], Tensor]] = {
    "random": lambda shape, g: torch.randn(shape, generator=g),
    "all equal": lambda shape, g: torch.full(shape, 0.25),
    # The upper 22 bits are the same, so two passes over 11 of them tell nothing.
    "one bin": lambda shape, g: _from_bits(0x3F800000 + torch.randint(1024, shape, generator=g)),
    "last bit": lambda shape, g: _from_bits(0x3F800000 + torch.randint(2, shape, generator=g)),
    "signed zeros": lambda shape, g: _some([0.0, -0.0], shape, g),
    "denormals": lambda shape, g: _from_bits(
        torch.randint(1, 1 << 23, shape, generator=g) - torch.randint(2, shape, generator=g) * 2**31
    ),
    "some NaN": _with_nans,
    "all NaN": lambda shape, g: torch.full(shape, torch.nan),
    "infinities": lambda shape, g: _some([torch.inf, -torch.inf, torch.nan, 3e38, -3e38], shape, g),
    "ties": lambda shape, g: _some([0.0, -0.0, 1.0, -1.0, 1e-40], shape, g),
    "descending": lambda shape, g: torch.arange(shape[-1], 0, -1.0).expand(shape).clone(),
}


def selection_cases(is_small: bool) -> Iterator[Case]:
    """Every kind of scores, mode, order and extreme budget; then rows of many tiles."""
    L, B, H, T = (2, 1, 2, 70) if is_small else (2, 2, 2, 700)
    turn = itertools.count()
    for kind, mode, order in itertools.product(SCORES, MODES, ORDERS):
        rows = L * H
        budgets = (0, 1, T // 3, T - 1, T, T + 7)
        if mode == "model":
            budgets = (rows, rows + 1, rows * T // 3, rows * T - 1, rows * T)
        for budget in budgets:
            g = torch.Generator().manual_seed(next(turn))
            sinks, recent = PINS[g.initial_seed() % len(PINS)]
            yield Case(
                f"{kind}, {mode}, {order}, budget {budget} of {T}, pins {sinks}+{recent}",
                *_noise(L, B, H, T, 8, 8, torch.float16, "stacked", g),
                torch.arange(T),
                budget,
                scores=SCORES[kind]((L, B, H, T), g),
                mode=mode,
                order=order,
                sinks=sinks,
                recent=recent,
            )
    T = 1500 if is_small else 20_000
    for kind, mode in itertools.product(("random", "all equal", "one bin", "some NaN"), MODES):
        g = torch.Generator().manual_seed(next(turn))
        yield Case(
            f"long row, {kind}, {mode}",
            *_noise(1, 1, 2, T, 8, 8, torch.float16, "stacked", g),
            torch.arange(T),
            T // 2 if mode == "model" else T // 4,
            scores=SCORES[kind]((1, 1, 2, T), g),
            mode=mode,
            order=ORDERS[next(turn) % 2],
            sinks=4,
            recent=16,
        )


# ---- memory ------------------------------------------------------------------------------------

HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (128, 64), (256, 256), (33, 17))
LAYOUTS = ("stacked", "list", "token-major", "slice", "interleaved", "off by one", "odd strides")


def _layer(
    B: int, H: int, T: int, D: int, Dv: int, dtype: torch.dtype, layout: str, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """K `[B, H, T, D]` and V `[B, H, T, Dv]` of one layer."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    if layout == "token-major":
        return noise(B, T, H, D).transpose(1, 2), noise(B, T, H, Dv).transpose(1, 2)
    if layout == "slice":
        return noise(B, H, T + 5, D)[:, :, :T], noise(B, H, T + 3, Dv + 8)[:, :, :T, :Dv]
    if layout == "interleaved":
        both = noise(B, T, H, D + Dv).transpose(1, 2)
        return both[..., :D], both[..., D:]
    if layout == "off by one":
        k, v = (noise(1 + B * H * T * dim)[1:].view(B, H, T, dim) for dim in (D, Dv))
        return k, v
    if layout == "odd strides":
        k, v = (noise(B, H, T * (dim + 1) + 3)[..., : T * (dim + 1)] for dim in (D, Dv))
        return k.unflatten(2, (T, D + 1))[..., 1:], v.unflatten(2, (T, Dv + 1))[..., :Dv]
    return noise(B, H, T, D), noise(B, H, T, Dv)


def _noise(
    L: int,
    B: int,
    H: int,
    T: int,
    D: int,
    Dv: int,
    dtype: torch.dtype,
    layout: str,
    g: torch.Generator,
) -> tuple[Tensor | Layers, Tensor | Layers]:
    pairs = [_layer(B, H, T, D, Dv, dtype, layout, g) for _ in range(L)]
    if layout == "stacked":
        return torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs])
    return [k for k, _ in pairs], [v for _, v in pairs]


def _positions(form: str, dtype: torch.dtype, L: int, B: int, H: int, T: int) -> Tensor:
    pos = torch.arange(T, dtype=dtype) * 3
    if form == "per batch":
        return pos.expand(B, T) + torch.arange(B, dtype=dtype)[:, None]
    if form == "per head":
        return pos.expand(L, B, H, T) + torch.arange(H, dtype=dtype)[:, None]
    return pos


def memory_cases(is_small: bool) -> Iterator[Case]:
    """Every dtype, layout and pair of head dims, with modes, orders and positions in turn."""
    L, B, H, T = (2, 2, 2, 30) if is_small else (2, 2, 2, 300)
    forms = list(itertools.product(("shared", "per batch", "per head"), (torch.int32, torch.int64)))
    turn = itertools.count()
    for (D, Dv), layout, dtype in itertools.product(HEAD_DIMS, LAYOUTS, DTYPES):
        i = next(turn)
        g = torch.Generator().manual_seed(i)
        form, pos_dtype = forms[i % len(forms)]
        mode, order = MODES[i // 2 % 3], ORDERS[i % 2]
        yield Case(
            f"{str(dtype)[6:]}, {layout}, head dims {D} and {Dv}, {form} {str(pos_dtype)[6:]} "
            f"positions, {mode}, {order}",
            *_noise(L, B, H, T, D, Dv, dtype, layout, g),
            _positions(form, pos_dtype, L, B, H, T),
            T * L * H // 3 if mode == "model" else T // 3,
            scores=torch.randn(L, B, H, T, generator=g),
            mode=mode,
            order=order,
            sinks=2,
            recent=3,
        )


# ---- padding, lengths, skipped layers ------------------------------------------------------------


def _padded(kind: str, L: int, B: int, H: int, T: int) -> Tensor:
    """Per-head positions with padding; all heads have the same."""
    pos = torch.arange(T).expand(L, B, H, T).clone()
    if kind == "left padding":
        pos[:, -1] -= T // 4
    elif kind == "padding between":
        pos[..., T // 3 : T // 2] = -1
    elif kind == "empty rows":
        pos[:, 0] = -1
    return pos


def _ragged_lengths(kind: str, L: int, B: int, H: int, T: int) -> int | Tensor | None:
    """Lengths of 0, below 0 and beyond the slots among them; all heads have the same."""
    if kind == "one number":
        return T // 2
    if kind == "per sequence":
        return torch.tensor([T // 2, 0, -1, T + 9][:B], dtype=torch.int32)
    if kind == "per row":
        counts = torch.tensor([T - 3, 0, T, 1, -1, T // 2, 7, T + 1])
        return counts[torch.arange(L * B) % 8].view(L, B, 1).repeat(1, 1, H)
    return None


def ragged_cases(is_small: bool) -> Iterator[Case]:
    """Padding, lengths, layers of different length, skipped layers, budgets of every form."""
    L, B, H, T = (3, 2, 2, 40) if is_small else (3, 4, 2, 400)
    turn = itertools.count()
    paddings = ("none", "left padding", "padding between", "empty rows")
    lengths = ("none", "one number", "per sequence", "per row")
    for padding, kind, mode, order in itertools.product(paddings, lengths, MODES, ORDERS):
        i = next(turn)
        g = torch.Generator().manual_seed(i)
        sinks, recent = PINS[i // 2 % len(PINS)]
        yield Case(
            f"{padding}, lengths {kind}, {mode}, {order}",
            *_noise(L, B, H, T, 16, 16, torch.bfloat16, "list", g),
            _padded(padding, L, B, H, T),
            L * H * T // 4 if mode == "model" else T // 4,
            scores=SCORES["ties" if i % 3 else "random"]((L, B, H, T), g),
            lengths=_ragged_lengths(kind, L, B, H, T),
            mode=mode,
            order=order,
            sinks=sinks,
            recent=recent,
        )
    yield from _uneven_layers(L, B, H, T)
    yield from _budget_forms(L, B, H, T)


def _uneven_layers(L: int, B: int, H: int, T: int) -> Iterator[Case]:
    for i, (mode, order) in enumerate(itertools.product(MODES, ORDERS)):
        g = torch.Generator().manual_seed(1000 + i)
        pairs = [_layer(B, H, n, 64, 64, torch.float16, "list", g) for n in (T, T // 3, T // 2)]
        k: Layers = [None if n == 1 else pair[0] for n, pair in enumerate(pairs)]
        v: Layers = [None if n == 1 else pair[1] for n, pair in enumerate(pairs)]
        pos: Layers = [
            None if x is None else torch.arange(x.shape[2]).expand(x.shape[:3]).clone() for x in k
        ]
        yield Case(
            f"layers of {T}, none and {T // 2} slots, {mode}, {order}",
            k,
            v,
            pos,
            2 * H * T // 4 if mode == "model" else T // 4,
            scores=torch.randn(L, B, H, T, generator=g),
            mode=mode,
            order=order,
        )


def _budget_forms(L: int, B: int, H: int, T: int) -> Iterator[Case]:
    g = torch.Generator().manual_seed(2000)
    any_budget = torch.randint(0, T + 5, (L, B, H), generator=g)
    budgets: list[tuple[str, str, list[int] | Tensor]] = [
        ("per layer", "per_head", [T // 2, 0, T + 3]),
        ("per layer and head", "per_head", any_budget[:, 0]),
        ("per row", "per_head", any_budget.int()),
        ("per layer", "union", [T // 2, 1, T]),
        ("per sequence", "model", torch.arange(L * H * T // 3, 2 * L * H * T, T)[:B]),
    ]
    for (form, mode, budget), order in itertools.product(budgets, ORDERS):
        yield Case(
            f"a budget {form}, {mode}, {order}",
            *_noise(L, B, H, T, 64, 64, torch.bfloat16, "stacked", g),
            _padded("none", L, B, H, T),
            budget,
            scores=torch.randn(L, B, H, T, generator=g),
            mode=mode,
            order=order,
            sinks=1,
            recent=2,
        )


# ---- policies ----------------------------------------------------------------------------------


def scoring_cases(is_small: bool) -> Iterator[Case]:
    """Both architectures at every dtype and pair of head dims, then rows of several chunks.

    A third of them hold some scores already, a third are ragged.
    """
    L, B, H, T = (1, 1, 2, 21) if is_small else (2, 2, 2, 300)
    turn = itertools.count()
    for architecture, (D, Dv), dtype in itertools.product(("small", "paper"), HEAD_DIMS, DTYPES):
        i = next(turn)
        layout = LAYOUTS[i % len(LAYOUTS)]
        yield _scoring_case(architecture, L, B, H, T, D, Dv, dtype, layout, i)
    for architecture, mode in itertools.product(("small", "paper"), MODES):
        T = 300 if is_small else 5000
        dtype = DTYPES[next(turn) % 3]
        i = next(turn)
        yield _scoring_case(architecture, 1, 1, 2, T, 64, 64, dtype, "stacked", i, mode)


def _scoring_case(
    architecture: str,
    L: int,
    B: int,
    H: int,
    T: int,
    D: int,
    Dv: int,
    dtype: torch.dtype,
    layout: str,
    turn: int,
    mode: str | None = None,
) -> Case:
    g = torch.Generator().manual_seed(3000 + turn)
    mode = MODES[turn // 3 % 3] if mode is None else mode
    known, lengths = None, None
    if turn % 3 == 1:
        known = torch.randn(L, B, H, T, generator=g)
        known[torch.rand(L, B, H, T, generator=g) < 0.4] = torch.nan
    elif turn % 3 == 2:
        lengths = _ragged_lengths("per row", L, B, H, T)
    return Case(
        f"{architecture}, {str(dtype)[6:]}, {layout}, head dims {D} and {Dv}, {T} slots, {mode}, "
        f"{('no scores', 'some scores', 'ragged')[turn % 3]}",
        *_noise(L, B, H, T, D, Dv, dtype, layout, g),
        _padded("left padding" if turn % 2 else "none", L, B, H, T),
        L * H * T // 4 if mode == "model" else T // 4,
        scores=known,
        architecture=architecture,
        lengths=lengths,
        mode=mode,
        order=ORDERS[turn % 2],
        sinks=2,
        recent=3,
    )


def whole_model_cases(is_small: bool) -> Iterator[Case]:
    """As many rows as a model has, so that blocks of many rows are on the device together."""
    shapes = (("small", 3, 1, 4, 150), ("paper", 3, 1, 2, 60))
    if not is_small:
        shapes = (("small", 32, 2, 8, 1000), ("paper", 28, 1, 4, 2000))
    for i, ((architecture, L, B, H, T), mode) in enumerate(itertools.product(shapes, MODES)):
        yield _scoring_case(
            architecture, L, B, H, T, 128, 128, torch.bfloat16, "stacked", 3 * i, mode
        )


def poisoned_cases(is_small: bool) -> Iterator[Case]:
    """NaN and infinite keys and values: their entries rank last, and no other entry notices."""
    L, B, H, T = (1, 1, 2, 40) if is_small else (2, 1, 2, 300)
    for i, (architecture, dtype) in enumerate(itertools.product(("small", "paper"), DTYPES)):
        case = _scoring_case(architecture, L, B, H, T, 64, 64, dtype, "stacked", 3 * i, "per_head")
        for n, poison in enumerate((torch.nan, torch.inf, -torch.inf)):
            for cache in (case.k, case.v):
                assert isinstance(cache, Tensor)
                cache[..., 5 + 4 * n, 7 * n] = poison
        case.name = f"NaN and inf in the cache, {case.name}"
        yield case


FAMILIES: dict[str, Callable[[bool], Iterator[Case]]] = {
    "selection": lambda small: itertools.chain(selection_cases(small), ragged_cases(small)),
    "memory": memory_cases,
    "scores": lambda small: itertools.chain(
        scoring_cases(small), poisoned_cases(small), whole_model_cases(small)
    ),
}
