"""Every backend of a device against `python_ref` on the CPU: the same survivors, bit for bit.

Scores are held to float64. What an eviction keeps and moves is held to `python_ref.selection`,
given the scores that the backend itself computed, or was given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from device_cases import Case
from device_target import Target, Twin
from torch import Tensor

import kvp_ext
from python_ref import compaction, fold, selection

SCORE_TOLERANCE = 1e-2  # of the largest score: what 16-bit tensor-core products allow
MAX_REPORTED = 20
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64, 1: torch.uint8}


class Mismatch(AssertionError):
    """A backend did not do what the reference says."""


def require_same(what: str, actual: Tensor, expected: Tensor, where: Tensor | None = None) -> None:
    """Equal shapes and bits, at `where` only if it is given."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise Mismatch(
            f"{what}: got {actual.dtype} {list(actual.shape)}, expected {expected.dtype} "
            f"{list(expected.shape)}"
        )
    bits = _BITS[actual.element_size()]
    different = actual.view(bits) != expected.view(bits)
    if where is not None:
        different &= where
    if bool(different.any()):
        at = tuple(different.nonzero()[0].tolist())
        raise Mismatch(
            f"{what}: {int(different.sum())} differ, first at {list(at)}: got "
            f"{actual[at].item()!r}, expected {expected[at].item()!r}"
        )


@cache
def _policy(
    architecture: str, layers: int, heads: int, dim: int, dim_v: int, device: torch.device
) -> kvp_ext.Policy:
    if device.type != "cpu":
        on_cpu = _policy(architecture, layers, heads, dim, dim_v, torch.device("cpu"))
        return on_cpu.to(device)
    return kvp_ext.Policy.random(
        layers=layers,
        kv_heads=heads,
        head_dim=dim,
        head_dim_v=dim_v,
        architecture=architecture,  # type: ignore[arg-type]
        max_position=255,
    )


def policy_of(case: Case, device: torch.device) -> kvp_ext.Policy | None:
    """The case's policy on a device."""
    if case.architecture is None:
        return None
    L, _, H, _ = case.shape()
    _, k, v = case.layers()[0]
    return _policy(case.architecture, L, H, k.shape[3], v.shape[3], device)


class Expected:
    """What an eviction of a case must leave, given the scores that rank: all `[L, B, H, …]`."""

    def __init__(self, case: Case, ranking: Tensor) -> None:
        self.pos = case.row_positions()
        budget = case.budget
        if isinstance(budget, list):
            budget = torch.tensor(budget)
        chosen = selection.select(
            ranking,
            budget,
            pos=self.pos,
            lengths=case.lengths,
            sinks=case.sinks,
            recent=case.recent,
            mode=case.mode,
        )
        self.chosen = chosen
        self.lengths = chosen.lengths
        self.source = chosen.kept.clone()
        if case.order == "any":
            for row in map(tuple, (chosen.lengths > 0).nonzero().tolist()):
                n = int(chosen.lengths[row])
                self.source[row][:n] = compaction.survivor_order(chosen.kept[row][:n], "any")
        place = torch.arange(self.source.shape[-1])
        self.is_survivor = place < self.lengths[..., None]
        count = selection.valid_entries(self.pos, case.lengths).sum(dim=-1)
        moves = (self.is_survivor & (self.source != place)).any(dim=-1)
        self.changed = moves | (self.lengths != count)

    def taken(self, before: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """What a layer's `[B, H, T, …]` hold in their first slots, and which of these count."""
        n = min(before.shape[2], self.source.shape[-1])
        slots = self.source[layer, ..., :n].clamp(min=0).long()
        mask = self.is_survivor[layer, ..., :n]
        if before.dim() == 4:
            slots = slots[..., None].expand(*slots.shape, before.shape[3])
            mask = mask[..., None]
        return before.gather(2, slots), mask


def check_case(case: Case, backend: str, device: torch.device) -> float | None:
    """Runs a case on a backend, and returns the largest error of its scores (None without policy).

    Raises:
        Mismatch: what differs, where, and the two values.
    """
    policy = policy_of(case, device)
    worst = None
    if policy is None:
        assert case.scores is not None
        ranking = case.scores
    else:
        ranking, worst = _check_scores(case, policy, backend, device)
        if case.scores is not None:
            ranking = torch.where(case.scores.isnan(), ranking, case.scores)
    expected = Expected(case, ranking)
    if policy is None:
        _check_select(case, expected, backend, device)
    twin, arguments = _placed(case, device)
    result = kvp_ext.evict_(
        **arguments,
        **_choices(case, device),
        order=case.order,
        policy=policy,
        return_indices=True,
        backend=backend,
    )
    _check_result(case, expected, result)
    _check_cache(case, expected, ranking, twin)
    return worst


def _placed(case: Case, device: torch.device) -> tuple[Twin, dict[str, Any]]:
    """The case's tensors on the device, by argument."""
    twin = Twin(device)

    def place(x: Tensor | list[Tensor | None] | None) -> Any:
        if x is None or isinstance(x, Tensor):
            return None if x is None else twin.place(x)
        return [None if t is None else twin.place(t) for t in x]

    arguments = {"k_cache": place(case.k), "v_cache": place(case.v), "pos": place(case.pos)}
    if case.scores is not None:
        arguments["scores"] = place(case.scores)
    return twin, arguments


def _choices(case: Case, device: torch.device) -> dict[str, Any]:
    def to_device(x: Any) -> Any:
        return x.to(device) if isinstance(x, Tensor) else x

    return {
        "budget": to_device(case.budget),
        "lengths": to_device(case.lengths),
        "sinks": case.sinks,
        "recent": case.recent,
        "mode": case.mode,
    }


def _check_scores(
    case: Case, policy: kvp_ext.Policy, backend: str, device: torch.device
) -> tuple[Tensor, float]:
    """The backend's scores, after comparison with float64, and their largest relative error."""
    _, arguments = _placed(case, device)
    arguments.pop("scores", None)
    lengths = _choices(case, device)["lengths"]
    actual = kvp_ext.score(**arguments, lengths=lengths, policy=policy, backend=backend).cpu()
    pos = case.row_positions()
    on_cpu = policy_of(case, torch.device("cpu"))
    assert on_cpu is not None
    exact = fold.score(on_cpu.folded, case.k, case.v, pos, dtype=torch.float64)
    exact = exact.masked_fill(~selection.valid_entries(pos, case.lengths), torch.nan)
    require_same("which scores are NaN", actual.isnan(), exact.isnan())
    require_same("which scores are infinite", actual.isinf(), exact.isinf())
    finite = exact.isfinite()
    if not bool(finite.any()):
        return actual, 0.0
    error = (actual.double() - exact).masked_fill(~finite, 0.0).abs()
    worst = float(error.max() / exact[finite].abs().max())
    if not worst <= SCORE_TOLERANCE:
        at = (error == error.max()).nonzero()[0].tolist()
        raise Mismatch(
            f"scores: at {at} off by {worst:.2e} of the largest, allowed {SCORE_TOLERANCE:.0e}"
        )
    return actual, worst


def _check_select(case: Case, expected: Expected, backend: str, device: torch.device) -> None:
    """`select`, then `compact_` of what it selected."""
    twin, arguments = _placed(case, device)
    choices = _choices(case, device)
    scores: list[Tensor | None] = [None] * len(case.k)
    for i, k, _ in case.layers():
        scores[i] = arguments["scores"][i, ..., : k.shape[2]]
    chosen = kvp_ext.select(
        scores,
        choices.pop("budget"),
        pos=arguments["pos"],
        **choices,
        backend=backend,
    )
    require_same("select: lengths", chosen.lengths.cpu(), expected.lengths)
    _require_rows("select: kept", chosen.kept.cpu(), expected.chosen.kept)
    if case.order == "stable" and case.lengths is None:
        kvp_ext.compact_(**arguments, selection=chosen, backend=backend)
        assert case.scores is not None
        _check_cache(case, expected, case.scores, twin)


def _require_rows(what: str, actual: Tensor, expected: Tensor) -> None:
    """Equal up to the padding of -1, which may be wider in one of them."""
    n = min(actual.shape[-1], expected.shape[-1])
    require_same(what, actual[..., :n].contiguous(), expected[..., :n].to(actual.dtype))
    for rest in (actual[..., n:], expected[..., n:]):
        require_same(f"{what}, past the rows", rest, torch.full_like(rest, -1))


def _check_result(case: Case, expected: Expected, result: kvp_ext.Evicted) -> None:
    require_same("lengths", result.lengths.cpu(), expected.lengths)
    assert result.kept is not None
    _require_rows("kept", result.kept.cpu(), expected.source)
    pos = expected.pos.gather(3, expected.source.clamp(min=0).long())
    pos = pos.masked_fill(~expected.is_survivor, -1)
    _require_rows("positions of the survivors", result.pos.cpu(), pos)
    if result.evicted != bool(expected.changed.any()):
        raise Mismatch(f"evicted: got {result.evicted}, expected {not result.evicted}")


def _check_cache(case: Case, expected: Expected, ranking: Tensor, twin: Twin) -> None:
    """Survivors, tails, untouched rows, and what lies between the rows."""
    views: list[Tensor] = []
    for i, k, v in case.layers():
        planes = {"k": k, "v": v}
        if case.has_own_positions():
            pos = case.pos[i]
            assert pos is not None
            planes["pos"] = pos
        if case.scores is not None:
            planes["scores"] = case.scores[i, ..., : k.shape[2]]
        for name, before in planes.items():
            views.append(before)
            # Where all entries stay, scores may be left uncomputed.
            source = ranking[i, ..., : k.shape[2]] if name == "scores" else before
            _check_plane(f"{name}[{i}]", before, source, twin.fetch(before), expected, i)
    if isinstance(case.pos, Tensor) and not case.has_own_positions():
        require_same("shared positions", twin.fetch(case.pos), case.pos)
        views.append(case.pos)
    for was, now in twin.gaps(views):
        require_same("memory between the rows", now, was)


def _check_plane(
    name: str, before: Tensor, source: Tensor, after: Tensor, expected: Expected, layer: int
) -> None:
    """K, V, positions or scores of one layer."""
    changed = expected.changed[layer]
    row = changed.reshape(*changed.shape, *[1] * (before.dim() - 2))
    is_known = torch.ones_like(row)
    if name.startswith("scores"):  # an unchanged row's may have been computed
        is_known = ~before.isnan()
    require_same(f"{name} of a row that stays", after, before, ~row & is_known)
    taken, counts = expected.taken(source, layer)
    require_same(f"{name} of survivors", after[:, :, : taken.shape[2]], taken, counts & row)
    slot = torch.arange(before.shape[2]).reshape(-1, *[1] * (before.dim() - 3))
    length = expected.lengths[layer].reshape(row.shape)
    tail = (slot >= length) & row
    if name.startswith("pos"):
        require_same(f"{name} past the new length", after, torch.full_like(after, -1), tail)
    elif name.startswith("scores"):
        require_same(f"{name} past the new length", after.isnan() | ~tail, torch.ones_like(tail))
    elif bool(before.isfinite().all()) and not bool(after.isfinite().all()):
        raise Mismatch(f"{name}: not all finite, as before")


def mixed(cases: list[Case]) -> Iterator[Case]:
    """All of them in an order of which every beginning has some of each kind."""
    step = next(p for p in (499, 503) if len(cases) % p)
    return (cases[i * step % len(cases)] for i in range(len(cases)))


def run_parity(
    cases: Iterable[Case],
    target: Target,
    record: Callable[[dict[str, Any]], None],
    until: float = math.inf,
) -> tuple[bool, str]:
    """Checks cases on all of the target's backends.

    Args:
        record: takes the results so far, now and then.
        until: when to begin no other case, in seconds since the epoch.

    Returns:
        Whether there were some and all passed, and a sentence about it.
    """
    counts = dict.fromkeys(target.backends, 0)
    errors = dict.fromkeys(target.backends, 0.0)
    failures: list[dict[str, str]] = []
    n_failed = 0
    ends_early = False

    def so_far() -> dict[str, Any]:
        return {
            "checked": counts,
            "largest_score_error": errors,
            "failed": n_failed,
            "failures": failures,
        }

    for n, case in enumerate(cases):
        if time.time() > until:
            ends_early = True
            break
        for backend in target.backends:
            try:
                worst = check_case(case, backend, target.device)
                target.synchronize()
                errors[backend] = max(errors[backend], worst or 0.0)
            except Exception as error:
                n_failed += 1
                if len(failures) < MAX_REPORTED:
                    text = f"{type(error).__name__}: {error}"
                    failures.append({"case": case.name, "backend": backend, "error": text[:600]})
                if _is_lost(target):
                    record(so_far())
                    return False, f"the device is lost after {case.name!r}: {error}"
            counts[backend] += 1
        if n % 25 == 0:
            record(so_far())
    record(so_far())
    total = sum(counts.values())
    if n_failed:
        first = failures[0]
        return False, (
            f"{n_failed} of {total} failed, first {first['backend']}: {first['case']}: "
            f"{first['error']}"
        )
    early = ", then the time was up" if ends_early else ""
    return total > 0, f"{total} checks on {', '.join(target.backends)}{early}"


def _is_lost(target: Target) -> bool:
    """Whether an earlier error, such as an illegal access, spoils every later call."""
    try:
        target.synchronize()
        torch.zeros(1, device=target.device).item()
    except Exception:
        return True
    return False
