"""Promises about the stream: no waiting, no growing memory, graphs that may be replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from device_parity import Mismatch, require_same
from device_target import Target
from torch import Tensor

import kvp_ext


class Problem:
    """One eviction whose lengths, budget and cache change in place between calls."""

    def __init__(self, target: Target, architecture: str, mode: str) -> None:
        self.L, self.B, self.H, self.T, self.D = (2, 2, 2, 60, 16)
        if not target.is_dry:
            self.L, self.B, self.H, self.T, self.D = (4, 2, 4, 3000, 128)
        device = target.device
        shape = (self.L, self.B, self.H, self.T)
        self.k, self.v = (
            torch.empty(*shape, self.D, dtype=torch.bfloat16, device=device) for _ in range(2)
        )
        self.pos = torch.empty(shape, dtype=torch.int64, device=device)
        self.scores = torch.empty(shape, device=device)
        self.lengths = torch.empty(shape[:3], dtype=torch.int32, device=device)
        self.budget = torch.empty(shape[:3], dtype=torch.int32, device=device)
        self.policy = kvp_ext.Policy.random(
            layers=self.L,
            kv_heads=self.H,
            head_dim=self.D,
            architecture=architecture,  # type: ignore[arg-type]
            max_position=self.T,
        ).to(device)
        self.mode, self._backend = mode, target.backends[0]

    def fill(self, seed: int) -> None:
        """Another cache, other lengths, another budget, in the same memory."""
        g = torch.Generator().manual_seed(seed)
        self.k.copy_(torch.randn(self.k.shape, generator=g))
        self.v.copy_(torch.randn(self.v.shape, generator=g))
        self.pos.copy_(torch.arange(self.T).expand(self.pos.shape))
        self.scores.fill_(torch.nan)
        counts = torch.randint(self.T // 2, self.T + 1, (self.L, self.B, 1), generator=g)
        self.lengths.copy_(counts.expand(self.lengths.shape))
        budgets = torch.randint(self.T // 8, self.T // 3, (self.L, self.B, 1), generator=g)
        budgets[0, 0] = self.T // 3  # where results have the width of the largest one
        self.budget.copy_(budgets.expand(self.budget.shape))

    def tensors(self) -> list[Tensor]:
        """Everything that `fill` writes."""
        return [self.k, self.v, self.pos, self.scores, self.lengths, self.budget]

    def evict(self) -> kvp_ext.Evicted:
        """What is captured: every tensor in place, every count on the device."""
        budget = {
            "per_head": self.budget,
            "union": self.budget[:, :, 0],
            "model": self.T * self.L * self.H // 4,
        }[self.mode]
        return kvp_ext.evict_(
            self.k,
            self.v,
            self.pos,
            budget,
            policy=self.policy,
            scores=self.scores,
            lengths=self.lengths,
            mode=self.mode,
            return_indices=True,
            backend=self._backend,
        )

    def state(self, result: kvp_ext.Evicted) -> dict[str, Tensor]:
        """Everything that an eviction leaves, on the CPU."""
        assert result.kept is not None
        tensors = {
            "lengths": result.lengths,
            "positions": result.pos,
            "kept": result.kept,
            "k": self.k,
            "v": self.v,
            "pos": self.pos,
            "scores": self.scores,
        }
        return {name: t.cpu().clone() for name, t in tensors.items()}


def _same_state(what: str, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in expected.items():
        require_same(f"{what}: {name}", actual[name], tensor)


def check_replays(problem: Problem, target: Target) -> None:
    """A graph replayed with other lengths, budgets and caches does what an eager call does."""
    expected = []
    for seed in range(4):
        problem.fill(seed)
        expected.append(problem.state(problem.evict()))
    problem.fill(0)
    problem.evict()  # the policy's fragments and the module exist before a capture
    problem.fill(0)
    target.synchronize()
    replay, static = target.capture(problem.evict)
    for seed in (1, 2, 3):
        problem.fill(seed)
        replay()
        target.synchronize()
        _same_state(f"replay {seed}", problem.state(static), expected[seed])


def check_side_stream(problem: Problem, target: Target) -> None:
    """The work goes to the current stream, in its order."""
    problem.fill(5)
    staged = [t.clone() for t in problem.tensors()]
    expected = problem.state(problem.evict())
    problem.fill(9)
    target.synchronize()
    results: list[kvp_ext.Evicted] = []

    def work() -> None:
        # On the device, so that the host does not wait and whatever went elsewhere comes too early.
        for t, was in zip(problem.tensors(), staged, strict=True):
            t.copy_(was)
        results.append(problem.evict())

    target.on_side_stream(work)
    target.synchronize()
    _same_state("side stream", problem.state(results[0]), expected)


def check_no_waiting(problem: Problem, target: Target) -> None:
    """torch raises where a call makes the host wait; counts may come from the host, too."""
    problem.fill(6)
    problem.evict()
    cache = {"k_cache": problem.k, "v_cache": problem.v, "pos": problem.pos}
    backend = target.backends[0]
    budgets = [problem.T // 4] * problem.L
    if problem.mode == "model":
        budgets = [problem.L * problem.H * problem.T // 4] * problem.B
    with target.forbid_waiting():
        problem.evict()
        scores = kvp_ext.score(**cache, policy=problem.policy, lengths=9, backend=backend)
        chosen = kvp_ext.select(
            scores, budgets, pos=problem.pos, lengths=9, mode=problem.mode, backend=backend
        )
        kvp_ext.compact_(**cache, selection=chosen, backend=backend)
    target.synchronize()


def check_memory(problem: Problem, target: Target) -> dict[str, int]:
    """Calls leave nothing allocated and ask the device for nothing."""
    for seed in range(3):
        problem.fill(seed)
        problem.evict()
    target.synchronize()
    target.reset_peak()
    before = target.allocations()
    for _ in range(20):
        problem.evict()
    target.synchronize()
    after = target.allocations()
    for name in ("bytes", "device_calls"):
        if after[name] != before[name]:
            raise Mismatch(f"20 calls changed {name} from {before[name]} to {after[name]}")
    return {"peak_extra_bytes": after["peak_bytes"] - before["bytes"]}


CHECKS: dict[str, Callable[[Problem, Target], Any]] = {
    "graph replays": check_replays,
    "side stream": check_side_stream,
    "no waiting": check_no_waiting,
    "memory": check_memory,
}


def run_graph(target: Target, record: Callable[[dict[str, Any]], None]) -> tuple[bool, str]:
    """All checks in every mode; returns whether all passed and a sentence."""
    found: dict[str, Any] = {}
    failures = []
    for mode in ("per_head", "union", "model"):
        for architecture in ("small", "paper"):
            problem = Problem(target, architecture, mode)
            for name, check in CHECKS.items():
                key = f"{name}, {mode}, {architecture}"
                try:
                    found[key] = check(problem, target) or "passed"
                except Exception as error:
                    found[key] = f"{type(error).__name__}: {error}"[:600]
                    failures.append(key)
                record(found)
    if failures:
        return False, f"{len(failures)} of {len(found)} failed, first {failures[0]}"
    return True, f"{len(found)} checks"
