"""The speed claims, as ratios in one run: evict_ against plain PyTorch doing the same.

    python bench/speed.py [--tokens 4096] [--rounds 15]

Every round times each competitor once, in turn, so that a slow spell of the machine hits all of
them; the table shows medians, and the ratio of each round's times as a median with its quartiles.
In-place work is restored outside the timed region.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.table import Table
from workloads import (
    RECENT,
    SINKS,
    SMOLLM2,
    EagerPolicy,
    Workload,
    competitors,
    select_and_gather,
)

import kvp_ext


def interleaved(
    runs: dict[str, Callable[[], object]], prepare: Callable[[], None], rounds: int
) -> dict[str, list[float]]:
    """Times in ms of each run, one per round, after two untimed rounds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            prepare()
            start = time.perf_counter()
            run()
            if turn >= 2:
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def peak_extra_bytes(work: Workload, policy: kvp_ext.Policy, budget: int) -> int:
    """Most memory that torch and libkvp hold beyond the cache during one call."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kvp_ext.evict_(work.k, work.v, work.pos, budget, policy=policy)
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    from kvp_ext._backends import resolve

    return peak + resolve("cpu", work.k.device).workspace_held()


def main(tokens: int = 4096, rounds: int = 15, keep: float = 0.25, out: Path | None = None) -> None:
    """Prints the table and optionally writes every number as JSON."""
    work = Workload(SMOLLM2, tokens, torch.float32)
    policy = work.policy("small")
    budget = kvp_ext.budget_from_ratio(tokens, keep_ratio=keep)
    k, v = work.k.flatten(0, 2), work.v.flatten(0, 2)
    plain = EagerPolicy(policy, work.pos)
    fast = kvp_ext.score(work.k, work.v, work.pos, policy=policy)
    torch.testing.assert_close(fast.flatten(0, 2), plain.score(k, v), rtol=1e-3, atol=1e-4)

    whole: dict[str, Callable[[], object]] = {
        "evict_": lambda: kvp_ext.evict_(work.k, work.v, work.pos, budget, policy=policy)
    }
    for name, run in competitors(plain).items():
        whole[name] = lambda run=run: run(k, v, budget)  # type: ignore[misc]
    scores = plain.score(k, v)
    compiled_tail = torch.compile(select_and_gather)

    def ours() -> None:
        chosen = kvp_ext.select(
            scores.view(work.k.shape[:4]), budget, pos=work.pos, sinks=SINKS, recent=RECENT
        )
        kvp_ext.compact_(work.k, work.v, work.pos, chosen)

    tail: dict[str, Callable[[], object]] = {
        "select + compact_": ours,
        "topk + sort + gather": lambda: select_and_gather(scores.clone(), k, v, budget),
        "torch.compile of it": lambda: compiled_tail(scores.clone(), k, v, budget),
    }

    console = Console()
    report: dict[str, object] = {
        "geometry": SMOLLM2.name,
        "tokens": tokens,
        "budget": budget,
        "threads": kvp_ext.get_num_threads(),
        "backend": kvp_ext.backends()["cpu"],
    }
    with torch.no_grad():
        for title, runs in (("whole eviction", whole), ("select and compact alone", tail)):
            times = interleaved(runs, work.restore, rounds)
            report[title] = summarise(console, title, times)
        report["steps"] = summarise(
            console, "small calls", interleaved(small_calls(work, policy), lambda: None, rounds)
        )
    extra = peak_extra_bytes(work, policy, budget)
    share = extra / (2 * work.k.numel() * work.k.element_size())
    report["peak extra memory"] = {"bytes": extra, "share_of_cache": share}
    console.print(f"peak extra memory of evict_: {extra / 1e6:.2f} MB, {share:.2%} of the cache")
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n")


def small_calls(work: Workload, policy: kvp_ext.Policy) -> dict[str, Callable[[], object]]:
    """A call that finds nothing to evict, and one decode step of a cache kept at its budget."""
    T = 1024
    k, v = work.k[..., :T, :].clone(), work.v[..., :T, :].clone()
    pos = torch.arange(T).expand(k.shape[:4]).clone()
    scores = kvp_ext.score(k, v, pos, policy=policy)

    def decode_step() -> None:
        pos[..., T - 1] += 1  # a new token in the slot that the last step freed
        scores[..., T - 1] = torch.nan
        kvp_ext.evict_(k, v, pos, T - 1, policy=policy, scores=scores)
        pos[..., T - 1] = pos[..., T - 2]

    return {
        f"budget = length = {T}": lambda: kvp_ext.evict_(k, v, pos, T, policy=policy),
        f"one token appended, {T - 1} kept": decode_step,
    }


def summarise(console: Console, title: str, times: dict[str, list[float]]) -> dict[str, object]:
    """A table of medians and of ratios to the first entry."""
    ours = next(iter(times))
    table = Table("", "median ms", "ratio to ours", "quartiles", title=title)
    summary: dict[str, object] = {}
    for name, series in times.items():
        ratios = [t / o for t, o in zip(series, times[ours], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        median = statistics.median(ratios)
        table.add_row(
            name, f"{statistics.median(series):.2f}", f"{median:.2f}x", f"{low:.2f}-{high:.2f}"
        )
        summary[name] = {"ms": series, "ratio": median, "quartiles": [low, high]}
    console.print(table)
    return summary


if __name__ == "__main__":
    typer.run(main)
