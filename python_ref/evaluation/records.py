"""Results as plain records, one JSON line each, from which tables and curves are made later."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# When the question is asked, by the name of the protocol.
PROTOCOLS = {"after": "question after eviction", "inside": "question in the prefill"}
# The method that evicts nothing.
FULL = "full"


@dataclass(frozen=True)
class Run:
    """One context, compressed once by one method to one budget.

    Attributes:
        model: name and fingerprint.
        task: that the document was made for.
        kind: of the document.
        document: its digest; with the question in the prefill that of the document before the
            question joined the context, so all questions about one context share it.
        protocol: "after", the context is compressed and all questions come later; or "inside",
            context and question are compressed together.
        branch: which question is inside; None for all questions, after.
        method: the contestant's name; "full" is the whole cache.
        fingerprint: of the contestant's weights and of learned shares, as far as there are any.
        allocator: how heads share the budget.
        budget: as it was asked for, a fraction (float) or a count (int).
        sinks, recent: pins inside the budget.
        metric: the document's own, see `metrics.METRICS`.
    """

    model: str
    task: str
    kind: str
    document: str
    protocol: str
    branch: int | None
    method: str
    fingerprint: str
    allocator: str
    budget: int | float
    sinks: int
    recent: int
    metric: str

    @property
    def key(self) -> tuple[object, ...]:
        """What decides the outcome: a record with the same key need not be made again.

        A count and a fraction never have the same key: `repr` tells 1 from 1.0.
        """
        return (
            self.model,
            self.task,
            self.document,
            self.protocol,
            self.branch,
            self.method,
            self.fingerprint,
            self.allocator,
            repr(self.budget),
            self.sinks,
            self.recent,
        )


@dataclass(frozen=True)
class Record(Run):
    """A run and what the model then did.

    Attributes:
        n: entries before eviction.
        kept: entries left in a head, mean over heads, counted in the cache.
        questions: answered; a continuation counts as one.
        tokens: of all answers.
        metrics: means over the questions, or over the answers' tokens, by key.
    """

    n: int
    kept: int
    questions: int
    tokens: int
    metrics: dict[str, float]


def read_records(path: Path) -> list[Record]:
    """The records of a file; none if it does not exist.

    A last line that was cut short, by a full disk or a power cut, is taken off the file with a
    warning, so that the next record starts on a line of its own.

    Raises:
        ValueError: another line is not a record; names file and line.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        warnings.warn(f"{path}: the last line was cut short and is dropped", stacklevel=2)
        cut = lines.pop()
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - len(cut))
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_parse(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a record ({error})") from error
    return records


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Writes records after those that the file holds."""
    text = "".join(json.dumps(dataclasses.asdict(record)) + "\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _parse(line: bytes) -> Record:
    values: Any = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError(f"got {type(values).__name__}, expected an object")
    return Record(**values)


def chosen(records: Sequence[Record], keys: Iterable[tuple[object, ...]]) -> list[Record]:
    """The records with the given keys, one each, in the order of the keys."""
    by_key = {record.key: record for record in records}
    return [by_key[key] for key in keys if key in by_key]
