"""Times of the kernels against their floor and against plain PyTorch, on a device of its own kind.

Inputs take turns, so that none is in the device's cache when its turn comes, and what an eviction
overwrote is restored before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from device_formulas import copies_past_cache, eviction_cost, macs_per_entry, summary
from device_rivals import RECENT, SINKS, PlainPolicy, by_policy, by_snapkv, by_tova
from device_target import Target
from torch import Tensor

import kvp_ext

KEEP = 0.25
WINDOW = 64
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Geometry:
    """A model's cache and the policy that evicts from it."""

    name: str
    architecture: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    slots: tuple[int, ...]


GEOMETRIES = (
    Geometry("the paper's agent", "paper", 28, 28, 4, 128, (1000, 4000, 10_000, 32_768, 131_072)),
    Geometry("64-wide policy", "small", 32, 32, 8, 128, (4000, 32_768, 131_072)),
)
DRY = (
    Geometry("the paper's agent", "paper", 2, 4, 2, 32, (60,)),
    Geometry("64-wide policy", "small", 2, 4, 2, 32, (100,)),
)


class Inputs:
    """Caches of one geometry and length, in turn."""

    def __init__(self, geometry: Geometry, slots: int, target: Target) -> None:
        shape = (geometry.layers, 1, geometry.kv_heads, slots, geometry.head_dim)
        self.budget = max(SINKS + RECENT + 1, int(slots * KEEP))
        self.bytes_each = 2 * 2 * geometry.layers * geometry.kv_heads * slots * geometry.head_dim
        count = copies_past_cache(self.bytes_each, target.cache_bytes())
        while count > 1 and 3 * count * self.bytes_each > target.free_bytes():
            count -= 1
        g = torch.Generator(target.device).manual_seed(0)

        def noise() -> Tensor:
            return torch.randn(shape, generator=g, dtype=DTYPE, device=target.device)

        self._pairs = [(noise(), noise()) for _ in range(count)]
        # An eviction writes below the budget only.
        self._front = [x[..., : self.budget, :].clone() for x in self._pairs[0]]
        self.pos = torch.arange(slots, device=target.device)
        self._turn = 0

    def next(self) -> tuple[Tensor, Tensor]:
        """K and V `[L, 1, H, T, D]`, as they were at first."""
        self._turn += 1
        pair = self._pairs[self._turn % len(self._pairs)]
        for x, front in zip(pair, self._front, strict=True):
            x[..., : self.budget, :].copy_(front)
        return pair


def ceilings(target: Target) -> dict[str, float]:
    """What copies and matrix products of plain PyTorch reach here: GB/s, TFLOP/s."""
    side, elements = (256, 1 << 18) if target.is_dry else (8192, 1 << 30)
    a, b = (torch.randn(side, side, dtype=DTYPE, device=target.device) for _ in range(2))
    source = torch.randn(elements, dtype=DTYPE, device=target.device)
    copy = torch.empty_like(source)
    runs: dict[str, tuple[Callable[[], Any], float]] = {
        "copy_gb_s": (lambda: copy.copy_(source), 2 * 2 * elements / 1e6),
        "matmul_tflop_s": (lambda: a @ b, 2 * side**3 / 1e9),
    }
    found = {}
    for name, (run, work) in runs.items():
        times = [target.time_ms(run, 1.0) for _ in range(13)][3:]
        found[name] = work / summary(times)["median"]
    return found


@dataclass
class Competitor:
    """Something to time.

    Attributes:
        prepare: gives the arguments of `run`, untimed.
        cost: what it has to read, write and multiply; None for the rivals, which are compared by
            their times.
    """

    name: str
    prepare: Callable[[], tuple[Any, ...]]
    run: Callable[..., Any]
    cost: Any = None


def competitors(geometry: Geometry, inputs: Inputs, target: Target) -> Iterator[Competitor]:
    """Ours, whole and step by step, then the rivals."""
    policy = kvp_ext.Policy.random(
        layers=geometry.layers,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        architecture=geometry.architecture,  # type: ignore[arg-type]
    ).to(target.device)
    backend, budget, pos = target.timed, inputs.budget, inputs.pos
    pins = {"sinks": SINKS, "recent": RECENT}
    rows = geometry.layers * geometry.kv_heads
    entries, kept = rows * len(pos), rows * budget
    macs = macs_per_entry(policy.folded.tensors)
    sizes = {"channels": 2 * geometry.head_dim, "element_bytes": 2}

    def evict(k: Tensor, v: Tensor) -> Any:
        return kvp_ext.evict_(k, v, pos, budget, policy=policy, backend=backend, **pins)

    def score(k: Tensor, v: Tensor) -> Tensor:
        return kvp_ext.score(k, v, pos, policy=policy, backend=backend)

    scores = score(*inputs.next())
    chosen = kvp_ext.select(scores, budget, pos=pos, backend=backend, **pins)
    moved = int((chosen.kept[..., :budget] != torch.arange(budget, device=pos.device)).sum())

    def cost(scored: int, moved: int, macs: int) -> Any:
        return eviction_cost(scored=scored, moved=moved, macs=macs, **sizes)

    yield Competitor("evict_", inputs.next, evict, cost(entries, moved, macs))
    yield Competitor("score", inputs.next, score, cost(entries, 0, macs))
    yield Competitor(
        "select",
        tuple,
        lambda: kvp_ext.select(scores, budget, pos=pos, backend=backend, **pins),
    )
    yield Competitor(
        "compact_",
        inputs.next,
        lambda k, v: kvp_ext.compact_(k, v, pos, chosen, backend=backend),
        cost(0, moved, 0),
    )
    del kept

    plain = PlainPolicy(policy, DTYPE, pos)
    g = torch.Generator(target.device).manual_seed(1)
    q = torch.randn(
        geometry.layers, geometry.query_heads, WINDOW, geometry.head_dim,
        generator=g, dtype=DTYPE, device=target.device,
    )  # fmt: skip

    def all_layers(one: Callable[[int, Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
        return lambda k, v: [one(i, k[i, 0], v[i, 0]) for i in range(geometry.layers)]

    eager = by_policy(plain, budget)
    yield Competitor("eager PyTorch", inputs.next, all_layers(eager))
    yield Competitor("compiled PyTorch", inputs.next, all_layers(target.compile(eager)))
    yield Competitor("TOVA", inputs.next, all_layers(by_tova(q[:, :, -1:], budget)))
    yield Competitor("SnapKV", inputs.next, all_layers(by_snapkv(q, budget)))


def time_one(competitor: Competitor, target: Target, rounds: int) -> list[float]:
    """Times in ms after two warm-ups."""
    times = []
    for turn in range(rounds + 2):
        arguments = competitor.prepare()
        ms = target.time_ms(lambda: competitor.run(*arguments), 5.0)  # noqa: B023
        if turn >= 2:
            times.append(ms)
    return times


def run_timing(target: Target, record: Callable[[dict[str, Any]], None]) -> tuple[bool, str]:
    """Times everything; a competitor that fails is reported and the others go on.

    Args:
        record: takes the results so far, after each competitor.

    Returns:
        Whether ours all ran, and a sentence about it.
    """
    found: dict[str, Any] = {"ceilings": ceilings(target), "keep": KEEP, "rows": []}
    copy, matmul = found["ceilings"]["copy_gb_s"], found["ceilings"]["matmul_tflop_s"]
    failed = []
    for geometry in DRY if target.is_dry else GEOMETRIES:
        for slots in geometry.slots:
            target.release()
            inputs = Inputs(geometry, slots, target)
            rounds = 3 if target.is_dry else 30 if inputs.bytes_each < 2**31 else 10
            ours = None
            for competitor in competitors(geometry, inputs, target):
                row: dict[str, Any] = {
                    "geometry": geometry.name,
                    "slots": slots,
                    "budget": inputs.budget,
                    "name": competitor.name,
                }
                try:
                    row["ms"] = summary(time_one(competitor, target, rounds))
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {error}"[:600]
                    failed.append(f"{geometry.name}, {slots} slots, {competitor.name}")
                else:
                    median = row["ms"]["median"]
                    ours = ours or median
                    row["ratio"] = median / ours
                    if competitor.cost is not None:
                        cost = competitor.cost
                        floor = cost.floor_ms(copy, matmul)
                        row |= {
                            "gb_s": cost.bytes / median / 1e6,
                            "tflop_s": cost.flops / median / 1e9,
                            "share_of_copy": cost.bytes / median / 1e6 / copy,
                            "share_of_matmul": cost.flops / median / 1e9 / matmul,
                            "floor_ms": floor,
                            "share_of_floor": floor / median,
                        }
                found["rows"].append(row)
                record(found)
            del inputs
    if failed:
        return False, f"{len(failed)} failed, first {failed[0]}"
    return True, f"{len(found['rows'])} rows"


def table(found: dict[str, Any]) -> list[str]:
    """The results as lines of text, narrow enough for a terminal."""
    c = found["ceilings"]
    lines = [
        f"copy {c['copy_gb_s']:.0f} GB/s, matmul {c['matmul_tflop_s']:.0f} TFLOP/s; "
        f"{found['keep']:.0%} kept",
        f"{'':18}{'slots':>8} {'':17}{'median ms':>10}{'p5':>9}{'p95':>9}{'GB/s':>7}"
        f"{'TFLOP/s':>9}{'floor':>7}{'ratio':>8}",
    ]
    for row in found["rows"]:
        head = f"{row['geometry']:18}{row['slots']:>8} {row['name']:17}"
        if "error" in row:
            lines.append(f"{head} {row['error'][:60]}")
            continue
        ms = row["ms"]
        line = f"{head}{ms['median']:>10.3f}{ms['p5']:>9.3f}{ms['p95']:>9.3f}"
        if "gb_s" in row:
            line += f"{row['gb_s']:>7.0f}{row['tflop_s']:>9.0f}{row['share_of_floor']:>7.0%}"
        else:
            line += f"{'':23}"
        lines.append(f"{line}{row['ratio']:>7.1f}x")
    return lines
