"""Times of the kernels, whole and step by step, and the ceilings of the device they ran on.

Caches take turns, so that none is in the device's cache when its turn comes, and what an eviction
overwrote is restored long before its next one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from device_formulas import Cost, copies_past_cache, eviction_cost, macs_per_entry, summary
from device_target import Target
from torch import Tensor

import kvp_ext

SINKS, RECENT = 4, 16
PINS = {"sinks": SINKS, "recent": RECENT}
DTYPE = torch.bfloat16
MAX_POSITION = 11_999  # as the paper's agents


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

    def policy(self, device: torch.device) -> kvp_ext.Policy:
        """An untrained one; weights do not change the time."""
        return kvp_ext.Policy.random(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            architecture=self.architecture,  # type: ignore[arg-type]
            max_position=MAX_POSITION,
        ).to(device)


QWEN = ("the paper's agent", "paper", 28, 28, 4, 128)  # Qwen2.5-7B
LLAMA = ("64-wide policy", "small", 32, 32, 8, 128)  # Llama-3.1-8B
SMALL = (2, 4, 2, 32)


def geometries(is_dry: bool) -> tuple[Geometry, ...]:
    """What is timed: the shortest caches first, should time run out."""
    if is_dry:
        return (Geometry(*QWEN[:2], *SMALL, (120,)), Geometry(*LLAMA[:2], *SMALL, (120,)))
    return (
        Geometry(*QWEN, (1000, 4000, 10_000, 32_768, 131_072)),
        Geometry(*LLAMA, (4000, 32_768, 131_072)),
    )


class Caches:
    """K and V `[L, 1, H, T, D]` of one geometry and length, in turn. A quarter is to be kept."""

    def __init__(self, geometry: Geometry, slots: int, target: Target) -> None:
        shape = (geometry.layers, 1, geometry.kv_heads, slots, geometry.head_dim)
        self.budget = slots // 4
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
        """A cache as it was at first."""
        # The one that was used last is restored now, so that by its turn nothing of it is cached.
        for x, front in zip(self._pairs[self._turn], self._front, strict=True):
            x[..., : self.budget, :].copy_(front)
        self._turn = (self._turn + 1) % len(self._pairs)
        return self._pairs[self._turn]


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
        times = [target.time_ms(run, 1.0)[0] for _ in range(25)][5:]
        found[name] = work / summary(times)["median"]
    return found


@dataclass
class Timed:
    """Something to time.

    Attributes:
        prepare: gives the arguments of `run`, untimed.
        cost: what it has to read, write and multiply, where that is known.
    """

    name: str
    prepare: Callable[[], tuple[Any, ...]]
    run: Callable[..., Any]
    cost: Cost | None = None


def measure(timed: Timed, target: Target, rounds: int) -> dict[str, Any]:
    """`ms` on the device and median `host_ms` to enqueue, after three warm-ups."""
    times, hosts = [], []
    for turn in range(rounds + 3):
        arguments = timed.prepare()
        lead_ms = min(100.0, 2 * hosts[-1] + 0.5) if hosts else 1.0
        ms, host_ms = target.time_ms(lambda: timed.run(*arguments), lead_ms)  # noqa: B023
        hosts.append(host_ms)
        if turn >= 3:
            times.append(ms)
    return {"ms": summary(times), "host_ms": summary(hosts[3:])["median"]}


def our_steps(
    geometry: Geometry, policy: kvp_ext.Policy, caches: Caches, target: Target
) -> Iterator[Timed]:
    """The eviction, then each of its steps alone."""
    backend, budget, pos = target.timed, caches.budget, caches.pos

    def evict(k: Tensor, v: Tensor) -> Any:
        return kvp_ext.evict_(k, v, pos, budget, policy=policy, backend=backend, **PINS)

    def score(k: Tensor, v: Tensor) -> Tensor:
        return kvp_ext.score(k, v, pos, policy=policy, backend=backend)

    def select() -> Any:
        return kvp_ext.select(scores, budget, pos=pos, backend=backend, **PINS)

    scores = score(*caches.next())
    chosen = select()
    moved = int((chosen.kept != torch.arange(budget, device=pos.device)).sum())
    entries = geometry.layers * geometry.kv_heads * len(pos)
    macs = macs_per_entry(policy.folded.tensors)

    def cost(scored: int, moved: int) -> Cost:
        return eviction_cost(
            scored=scored, moved=moved, channels=2 * geometry.head_dim, element_bytes=2, macs=macs
        )

    yield Timed("evict_", caches.next, evict, cost(entries, moved))
    yield Timed("score", caches.next, score, cost(entries, 0))
    yield Timed("select", tuple, select)
    yield Timed(
        "compact_",
        caches.next,
        lambda k, v: kvp_ext.compact_(k, v, pos, chosen, backend=backend),
        cost(0, moved),
    )


def shares(cost: Cost, ms: float, ceiling: dict[str, float]) -> dict[str, float]:
    """Rates, and what they are of the ceilings and of the floor."""
    copy, matmul = ceiling["copy_gb_s"], ceiling["matmul_tflop_s"]
    gb_s, tflop_s = cost.bytes / ms / 1e6, cost.flops / ms / 1e9
    floor = cost.floor_ms(copy, matmul)
    return {
        "gb_s": gb_s,
        "tflop_s": tflop_s,
        "share_of_copy": gb_s / copy,
        "share_of_matmul": tflop_s / matmul,
        "floor_ms": floor,
        "share_of_floor": floor / ms,
    }


Entrants = Callable[[Geometry, kvp_ext.Policy, Caches, Target], Iterator[Timed]]
Record = Callable[[dict[str, Any]], None]


def time_size(
    entrants: Entrants, geometry: Geometry, policy: kvp_ext.Policy, slots: int, target: Target
) -> Iterator[tuple[dict[str, Any], Cost | None]]:
    """A row for each entrant, with what failed in place of times, and what it has to do."""
    caches = Caches(geometry, slots, target)
    rounds = 3 if target.is_dry else 30 if caches.bytes_each < 2**32 else 12
    for timed in entrants(geometry, policy, caches, target):
        row: dict[str, Any] = {"geometry": geometry.name, "slots": slots}
        row |= {"budget": caches.budget, "name": timed.name}
        try:
            row |= measure(timed, target, rounds)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:600]
            target.release()
        yield row, timed.cost


def time_all(
    entrants: Entrants, target: Target, record: Record, until: float, **found: Any
) -> tuple[bool, str]:
    """Times entrants on all geometries; where one fails the others go on.

    Args:
        record: takes the results so far, after each row.
        until: when to begin no other size, in seconds since the epoch.
        found: what else belongs to the results; with `ceilings` there are shares of them.

    Returns:
        Whether there were some and all ran, and a sentence about it.
    """
    rows: list[dict[str, Any]] = []
    policy, early = None, ""
    sizes = [(g, slots) for g in geometries(target.is_dry) for slots in g.slots]
    for n, (geometry, slots) in enumerate(sizes):
        if time.time() > until:
            early = f" of {n} sizes, then the time was up for {len(sizes) - n}"
            break
        if policy is None or policy.architecture != geometry.architecture:
            policy = geometry.policy(target.device)
        target.release()
        for row, cost in time_size(entrants, geometry, policy, slots, target):
            if cost is not None and "ms" in row and "ceilings" in found:
                row |= shares(cost, row["ms"]["median"], found["ceilings"])
            rows.append(row)
            record(found | {"rows": rows})
    failed = [row for row in rows if "error" in row]
    if failed:
        first = ", ".join(str(failed[0][key]) for key in ("geometry", "slots", "name", "error"))
        return False, f"{len(failed)} of {len(rows)} failed, first {first}"
    return bool(rows), f"{len(rows)} times{early}"


def run_timing(target: Target, record: Record, until: float = math.inf) -> tuple[bool, str]:
    """Ours; see `time_all`."""
    return time_all(our_steps, target, record, until, ceilings=ceilings(target))
