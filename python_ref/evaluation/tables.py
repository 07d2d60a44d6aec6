"""Summaries as tables: rich for the terminal, Markdown and JSON for files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from python_ref.evaluation.metrics import METRICS
from python_ref.evaluation.records import PROTOCOLS
from python_ref.evaluation.summary import Cell, Interval, Summary

if TYPE_CHECKING:
    from rich.table import Table

LEGEND = (
    "A cell: value [95% interval]; share of the whole cache's, n questions; Δ, difference to the "
    "reference [95% interval, paired]. Intervals come from a bootstrap over documents, those of "
    "proportions from Wilson's formula; where all documents agree the bootstrap has no width."
)


def title(summary: Summary) -> str:
    """Task, protocol and metric: what the figures are."""
    return f"{summary.task}: {PROTOCOLS[summary.protocol]}: {METRICS[summary.metric].label}"


def caption(summary: Summary) -> str:
    """The whole cache's figure and what all methods had in common."""
    parts = [f"{summary.model}; {summary.sinks} sinks and {summary.recent} recent inside budgets"]
    if summary.full is not None:
        low, high = summary.full.interval
        parts.append(f"whole cache {summary.full.value:.2f} [{low:.2f}, {high:.2f}]")
    counted = [*([summary.full] if summary.full else []), *summary.cells]
    documents = max(cell.documents for cell in counted)
    parts.append("1 document" if documents == 1 else f"{documents} documents")
    if summary.reference is not None:
        parts.append(f"Δ is to {summary.reference}")
    parts.append(f"{'higher' if METRICS[summary.metric].higher_is_better else 'lower'} is better")
    return "; ".join(parts)


def grid(summary: Summary) -> list[list[list[str]]]:
    """Rows of cells, each a list of lines; the first row and column are headings."""
    budgets = list(dict.fromkeys(cell.budget for cell in summary.cells))
    by_place = {(cell.label, cell.budget): cell for cell in summary.cells}
    rows = [[["method"], *([budget_label(budget)] for budget in budgets)]]
    for label in dict.fromkeys(cell.label for cell in summary.cells):
        places = [by_place.get((label, budget)) for budget in budgets]
        rows.append([[label], *(_lines(cell) for cell in places)])
    return rows


def budget_label(budget: int | float | None) -> str:
    """A column's heading."""
    if budget is None:
        return "all budgets"
    return f"{budget} kept" if isinstance(budget, int) else f"{100 * budget:.4g}% kept"


def _lines(cell: Cell | None) -> list[str]:
    if cell is None:
        return [""]
    share = "" if cell.share is None else f"{cell.share:.0%} of whole, "
    lines = [_figure(cell.value, cell.interval), f"{share}n={cell.questions}"]
    if cell.difference is not None and cell.difference_interval is not None:
        lines.append("Δ " + _figure(cell.difference, cell.difference_interval, "+"))
    return lines


def _figure(value: float, interval: Interval, sign: str = "") -> str:
    low, high = interval
    return f"{value:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"


def rich_table(summary: Summary) -> Table:
    """A table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    head, *rows = grid(summary)
    table = Table(title=escape(title(summary)), caption=escape(caption(summary)), show_lines=True)
    for i, heading in enumerate(head):
        table.add_column(heading[0], justify="left" if i == 0 else "right", no_wrap=i > 0)
    for row in rows:
        table.add_row(*(escape("\n".join(lines)) for lines in row))
    return table


def markdown(summaries: Sequence[Summary], heading: str) -> str:
    """A page of all tables."""
    parts = [f"# {heading}", LEGEND]
    for summary in summaries:
        head, *rows = (["<br>".join(lines) for lines in row] for row in grid(summary))
        table = [head, ["---"] * len(head), *rows]
        parts.append(f"## {title(summary)}")
        parts.append(caption(summary))
        parts.append("\n".join("| " + " | ".join(_escape(c) for c in row) + " |" for row in table))
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return text.replace("|", r"\|")


def as_json(summaries: Sequence[Summary]) -> str:
    """All figures, for other programs."""
    return json.dumps([dataclasses.asdict(summary) for summary in summaries], indent=1) + "\n"
