"""Summaries as curves: a metric against the number of entries kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from python_ref.artifacts import replacing
from python_ref.evaluation.metrics import METRICS
from python_ref.evaluation.records import PROTOCOLS
from python_ref.evaluation.summary import Cell, Summary


def draw_curves(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """One PNG for each task and protocol: its own metric, and the future attention lost.

    Returns the files, which are replaced if they exist.
    """
    figures: dict[tuple[str, str, str], list[Summary]] = {}
    for summary in summaries:
        if summary.primary or summary.metric == "lost_pinned":
            key = (summary.model, summary.task, summary.protocol)
            figures.setdefault(key, []).append(summary)
    models = list(dict.fromkeys(model for model, _, _ in figures))
    paths = []
    for (model, task, protocol), shown in figures.items():
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{task} {protocol}").strip("-")
        number = "" if len(models) == 1 else f"-{models.index(model)}"
        paths.append(folder / f"curves-{name}{number}.png")
        _draw(shown, f"{task}, {PROTOCOLS[protocol]}", paths[-1])
    return paths


def _draw(summaries: Sequence[Summary], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (6.5 * len(summaries) + 2, 4.5)
    figure, axes = plt.subplots(
        1, len(summaries), figsize=size, layout="constrained", squeeze=False
    )
    labels = list(dict.fromkeys(cell.label for s in summaries for cell in s.cells))
    for axis, summary in zip(axes[0], summaries, strict=True):
        for i, name in enumerate(labels):
            points = curve(summary, name)
            if points:
                # Slightly apart, so that equal figures do not hide each other.
                kept = [cell.kept * (1 + 0.012 * i) for cell in points]
                values = [cell.value for cell in points]
                # A resampled interval need not contain the value itself.
                below = [max(0.0, cell.value - cell.interval[0]) for cell in points]
                above = [max(0.0, cell.interval[1] - cell.value) for cell in points]
                axis.errorbar(
                    kept,
                    values,
                    yerr=(below, above),
                    label=name,
                    color=f"C{i % 10}",
                    marker="osD^vP"[i // 10 % 6],
                    lw=2.5 if name == summary.reference else 1.2,
                    capsize=2,
                )
        if summary.full is not None:
            axis.axhline(summary.full.value, color="black", ls=":", label="whole cache")
        metric = METRICS[summary.metric]
        better = "higher" if metric.higher_is_better else "lower"
        axis.set(xlabel="entries kept in a head (log scale)", ylabel=metric.label, xscale="log")
        if summary.metric == "lost_pinned":
            axis.set_yscale("log")
        ticks = sorted({round(cell.kept) for cell in summary.cells})
        axis.set_xticks(ticks, map(str, ticks))
        axis.set_xticks([], minor=True)
        axis.set_title(f"{better} is better")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small")
    figure.suptitle(title)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=120, format="png")
    plt.close(figure)


def curve(summary: Summary, label: str) -> list[Cell]:
    """The cells of a method, shared in one way, by ascending entries kept."""
    return sorted((c for c in summary.cells if c.label == label), key=lambda cell: cell.kept)
