"""From records to figures: means, confidence intervals and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from python_ref.evaluation.metrics import METRICS, Metric
from python_ref.evaluation.records import FULL, Record
from python_ref.evaluation.statistics import RESAMPLES, bootstrap_interval, wilson_interval

Interval = tuple[float, float]
UNIFORM = "uniform"


@dataclass(frozen=True)
class Cell:
    """One figure: a metric of one method at one budget, shared in one way.

    Attributes:
        method: as in the records.
        budget: as in the records; None for what does not depend on it.
        kept: entries left in a head, mean over records.
        value: of the metric over all records.
        interval: its 95% confidence interval.
        share: value over that of the whole cache on the same documents; None where that has none.
        documents, questions: that the value rests on.
        difference: value minus the reference's on the documents that both have; None for the
            reference itself and the whole cache.
        difference_interval: its 95% confidence interval, documents drawn in pairs.
        allocator: as in the records; "uniform" for what does not depend on the budget.
    """

    method: str
    budget: int | float | None
    kept: float
    value: float
    interval: Interval
    share: float | None
    documents: int
    questions: int
    difference: float | None = None
    difference_interval: Interval | None = None
    allocator: str = UNIFORM

    @property
    def label(self) -> str:
        """The method, and how the budget was shared if not evenly."""
        return self.method if self.allocator == UNIFORM else f"{self.method} + {self.allocator}"


@dataclass(frozen=True)
class Summary:
    """All figures of one metric on one task under one protocol.

    Attributes:
        model, task, protocol, sinks, recent: what the records have in common.
        metric: a key of `metrics.METRICS`.
        primary: whether it is the metric that the task is about.
        reference: the label of the method that others are compared with; None if it is not among
            them. It shares evenly, or as it first did where it never shared evenly.
        full: the whole cache; None for metrics that it has no value of.
        cells: all others.
    """

    model: str
    task: str
    protocol: str
    sinks: int
    recent: int
    metric: str
    primary: bool
    reference: str | None
    full: Cell | None
    cells: tuple[Cell, ...]


def summarise(
    records: Sequence[Record],
    *,
    reference: str = "kvp",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Summary]:
    """The figures of every model, task, protocol and metric in the records.

    Args:
        reference: the method that others are compared with, where it was measured.
        seed, resamples: of the bootstrap.
    """
    groups: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        key = (r.model, r.task, r.protocol, r.sinks, r.recent, r.metric)
        groups.setdefault(key, []).append(r)
    summaries = []
    for group in groups.values():
        primary = group[0].metric
        names = {METRICS[primary].key: primary}
        for name, metric in METRICS.items():
            if any(metric.key in r.metrics for r in group):
                names.setdefault(metric.key, name)
        for name in names.values():
            table = _Table(METRICS[name], group, reference, seed, resamples)
            summaries.append(
                Summary(
                    group[0].model,
                    group[0].task,
                    group[0].protocol,
                    group[0].sinks,
                    group[0].recent,
                    name,
                    name == primary,
                    table.reference,
                    *table.cells(),
                )
            )
    return summaries


class _Table:
    """The records of one metric, by method and budget, and the statistics on them."""

    def __init__(
        self, metric: Metric, records: Iterable[Record], reference: str, seed: int, resamples: int
    ) -> None:
        self.metric = metric
        self.seed = seed
        self.resamples = resamples
        self.columns: dict[tuple[str, str, str], list[Record]] = {}
        seen = set()
        for record in records:
            budget, allocator = "", UNIFORM
            if metric.by_budget:
                budget, allocator = repr(record.budget), record.allocator
            sample = (record.method, allocator, budget, record.document, record.branch)
            if metric.key in record.metrics and sample not in seen:
                column = (record.method, allocator, budget)
                self.columns.setdefault(column, []).append(record)
                seen.add(sample)
        shared = [allocator for method, allocator, _ in self.columns if method == reference]
        self.reference: str | None = None
        self.rivals: dict[str, list[Record]] = {}
        if shared:
            how = UNIFORM if UNIFORM in shared else shared[0]
            self.reference = reference if how == UNIFORM else f"{reference} + {how}"
            for (method, allocator, budget), column_records in self.columns.items():
                if (method, allocator) == (reference, how):
                    self.rivals[budget] = column_records

    def cells(self) -> tuple[Cell | None, tuple[Cell, ...]]:
        """The whole cache's and all others."""
        full = next((c for (m, _, _), c in self.columns.items() if m == FULL), None)
        cells = [
            self._cell(records, allocator, full, self.rivals.get(budget))
            for (method, allocator, budget), records in self.columns.items()
            if method != FULL
        ]
        return self._cell(full, UNIFORM, None, None) if full else None, tuple(cells)

    def _cell(
        self,
        records: list[Record],
        allocator: str,
        full: list[Record] | None,
        rival: list[Record] | None,
    ) -> Cell:
        first = records[0]
        sums = self._document_sums(records)
        value = self._value(sums.values())
        share = None
        if full:
            whole = self._document_sums(full)
            same = [whole[document] for document in sums if document in whole]
            share = value / self._value(same) if same and self._value(same) else None
        difference = interval = None
        if rival and rival is not records:
            difference, interval = self._difference(sums, self._document_sums(rival))
        return Cell(
            first.method,
            first.budget if self.metric.by_budget else None,
            sum(r.kept for r in records) / len(records),
            value,
            self._interval(records, sums),
            share,
            len(sums),
            sum(r.questions for r in records),
            difference,
            interval,
            allocator,
        )

    def _document_sums(self, records: Iterable[Record]) -> dict[str, tuple[float, float]]:
        """Of every document: sum of weight x value, and of weights."""
        sums: dict[str, tuple[float, float]] = {}
        for record in records:
            weight = {"questions": record.questions, "tokens": record.tokens, "records": 1}[
                self.metric.weight
            ]
            total, weights = sums.get(record.document, (0.0, 0.0))
            value = record.metrics[self.metric.key]
            sums[record.document] = (total + weight * value, weights + weight)
        return sums

    def _value(self, sums: Iterable[tuple[float, float]]) -> float:
        total, weight = torch.tensor(list(sums), dtype=torch.float64).sum(dim=0)
        return self.metric.finish(total / weight).item()

    def _drawn(self, sums: Mapping[str, tuple[float, float]]) -> Callable[[Tensor], Tensor]:
        """The value as a function of drawn documents."""
        table = torch.tensor(list(sums.values()), dtype=torch.float64)

        def statistic(drawn: Tensor) -> Tensor:
            total, weight = table[drawn].sum(dim=1).unbind(dim=-1)
            return self.metric.finish(total / weight)

        return statistic

    def _interval(
        self, records: Sequence[Record], sums: Mapping[str, tuple[float, float]]
    ) -> Interval:
        """Wilson's for a proportion, the bootstrap's for anything else.

        Wilson's takes questions for independent. Where several share a document the bootstrap,
        which does not, may widen it; alone it would shrink to nothing when all answers are right.
        """
        low, high = bootstrap_interval(
            self._drawn(sums), len(sums), seed=self.seed, resamples=self.resamples
        )
        if not self.metric.proportion:
            return low, high
        questions = sum(record.questions for record in records)
        wilson = wilson_interval(self._value(sums.values()) * questions, questions)
        if questions == len(sums):
            return wilson
        return min(low, wilson[0]), max(high, wilson[1])

    def _difference(
        self, own: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]
    ) -> tuple[float, Interval] | tuple[None, None]:
        shared = [document for document in own if document in other]
        if not shared:
            return None, None
        mine = self._drawn({document: own[document] for document in shared})
        theirs = self._drawn({document: other[document] for document in shared})
        everything = torch.arange(len(shared))[None]
        difference = (mine(everything) - theirs(everything)).item()
        return difference, bootstrap_interval(
            lambda drawn: mine(drawn) - theirs(drawn),
            len(shared),
            seed=self.seed,
            resamples=self.resamples,
        )
