"""What an evaluation compares, and which runs that makes of a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from python_ref.data.document import Document
from python_ref.evaluation.allocation import UNIFORM, Allocation
from python_ref.evaluation.contestants import Contestant
from python_ref.evaluation.metrics import METRICS, TEXT_METRICS
from python_ref.evaluation.records import FULL, PROTOCOLS, Run
from python_ref.training.traces import document_digest


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        model: the model's name in records, with what identifies its weights.
        contestants: beside the whole cache, which is always measured.
        budgets: fractions (float) or entries (int).
        protocols: keys of `records.PROTOCOLS`.
        sinks, recent: pins inside every budget, the same for all contestants.
        allocators: how heads share the budgets; every contestant with each.
    """

    model: str
    contestants: Sequence[Contestant]
    budgets: Sequence[int | float]
    protocols: Sequence[str] = ("after",)
    sinks: int = 4
    recent: int = 16
    allocators: Sequence[Allocation] = (UNIFORM,)

    def __post_init__(self) -> None:
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                raise ValueError(
                    f"protocol: got {protocol!r}, expected one of {', '.join(PROTOCOLS)}"
                )
        names = [contestant.name for contestant in self.contestants]
        if len(set(names)) < len(names) or FULL in names:
            raise ValueError(f"contestants: got {names}, expected different names, none {FULL!r}")
        shared = [allocator.name for allocator in self.allocators]
        if not shared or len(set(shared)) < len(shared):
            raise ValueError(f"allocators: got {shared}, expected different names, at least one")

    def runs(self, task: str, document: Document) -> list[Run]:
        """All runs of a document, those that share a prefill one after another.

        Raises:
            ValueError: the document's metric is unknown, or needs a question that is missing.
        """
        _check_metric(document)
        digest = document_digest(document)
        compared: list[tuple[str, str, str, int | float]] = [(FULL, "", UNIFORM.name, 1.0)]
        compared += [
            (c.name, "+".join(filter(None, (c.fingerprint, a.fingerprint))), a.name, b)
            for c in self.contestants
            for a in self.allocators
            for b in self.budgets
        ]
        return [
            Run(
                model=self.model,
                task=task,
                kind=document.kind,
                document=digest,
                protocol=protocol,
                branch=branch,
                method=method,
                fingerprint=fingerprint,
                allocator=allocator,
                budget=budget,
                sinks=self.sinks,
                recent=self.recent,
                metric=document.metric,
            )
            for protocol, branch in self._samples(document)
            for method, fingerprint, allocator, budget in compared
        ]

    def _samples(self, document: Document) -> list[tuple[str, int | None]]:
        """Protocol and branch of every cache that is compressed.

        All questions share the context that is compressed before they come. A question inside
        makes a cache of its own; a continuation has no question that could be inside.
        """
        samples: list[tuple[str, int | None]] = []
        if "after" in self.protocols:
            samples.append(("after", None))
        if "inside" in self.protocols:
            samples += [("inside", i) for i, b in enumerate(document.branches) if b.question]
        return samples


def _check_metric(document: Document) -> None:
    name = f"document of kind {document.kind!r}"
    if document.metric not in METRICS:
        known = ", ".join(METRICS)
        raise ValueError(f"{name}: has metric {document.metric!r}, expected one of {known}")
    if document.metric in TEXT_METRICS and not all(b.question for b in document.branches):
        raise ValueError(
            f"{name}: a branch has no question, expected one, because {document.metric} is of "
            "the text that the model says after it"
        )
