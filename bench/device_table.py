"""The short tables that bench/device_check.sh prints last."""

from __future__ import annotations

from typing import Any

OURS = ("evict_", "score", "select", "compact_")
RIVALS = ("eager PyTorch", "compiled PyTorch", "TOVA", "SnapKV")
Rows = list[dict[str, Any]]


def by_size(rows: Rows) -> dict[tuple[str, int], dict[str, dict[str, Any]]]:
    """Rows by (geometry, slots), then by name."""
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["geometry"], row["slots"]), {})[row["name"]] = row
    return found


def _ms(row: dict[str, Any] | None, which: str = "median") -> str:
    if row is None:
        return ""
    return f"{row['ms'][which]:.3f}" if "ms" in row else "failed"


def steps(step_results: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each step: what came of it, its seconds, and what it says."""
    lines = []
    for name, step in step_results.items():
        state = "skipped" if step["skipped"] else "passed" if step["passed"] else "FAILED"
        lines.append(f"{name:13}{state:8}{step['seconds']:>7.1f} s  {step['says'][:160]}")
    return lines


def ours(timing: dict[str, Any]) -> list[str]:
    """Times in ms of the eviction with its rates, and of its steps alone."""
    c = timing["ceilings"]
    lines = [
        f"ms; floor, copy, matmul: share of the floor, of {c['copy_gb_s']:.0f} GB/s and of "
        f"{c['matmul_tflop_s']:.0f} TFLOP/s, measured here",
        f"{'':18}{'slots':>8}{'evict_':>9}{'p5':>9}{'p95':>9}{'floor':>7}{'copy':>6}{'matmul':>8}"
        f"{'score':>9}{'select':>9}{'compact_':>10}{'host':>7}",
    ]
    for (geometry, slots), rows in by_size(timing["rows"]).items():
        evict, score, select, compact = (rows.get(name) for name in OURS)
        line = f"{geometry:18}{slots:>8}{_ms(evict):>9}{_ms(evict, 'p5'):>9}{_ms(evict, 'p95'):>9}"
        if evict is not None and "share_of_floor" in evict:
            line += f"{evict['share_of_floor']:>7.0%}{evict['share_of_copy']:>6.0%}"
            line += f"{evict['share_of_matmul']:>8.0%}"
        else:
            line += " " * 21
        line += f"{_ms(score):>9}{_ms(select):>9}{_ms(compact):>10}"
        lines.append(line + (f"{evict['host_ms']:>7.3f}" if evict and "host_ms" in evict else ""))
    return lines


def rivals(timing: dict[str, Any] | None, found: dict[str, Any]) -> list[str]:
    """Times in ms of the rivals and, in brackets, as multiples of evict_'s."""
    evictions = by_size(timing["rows"] if timing else [])
    lines = [f"{'':18}{'slots':>8}" + "".join(f"{name:>21}" for name in RIVALS)]
    for size, rows in by_size(found["rows"]).items():
        evict = evictions.get(size, {}).get("evict_", {}).get("ms")
        line = f"{size[0]:18}{size[1]:>8}"
        for name in RIVALS:
            cell = _ms(rows.get(name))
            if evict and "ms" in rows.get(name, {}):
                cell += f" ({rows[name]['ms']['median'] / evict['median']:.1f}x)"
            line += f"{cell:>21}"
        lines.append(line)
    return lines


def conclusion(content: dict[str, Any]) -> list[str]:
    """All tables of a report, as far as it goes."""
    results = content["steps"]
    timing, others = (results.get(name, {}).get("found") for name in ("timing", "rivals"))
    lines = steps(results)
    if timing:
        lines += ["", *ours(timing)]
    if others:
        lines += ["", *rivals(timing, others)]
    return lines
