"""The training log: a CSV file with one row a step, and its picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from python_ref.artifacts import replacing


@dataclass(frozen=True)
class Row:
    """One step.

    Attributes:
        step: of the whole training, counted from 1.
        phase: number and objective, for example "1 regression".
        loss: mean over heads.
        learning_rate: of the step.
        gradient_norm: mean over heads, before clipping.
        seconds: of training until now, without evaluation.
        dev_cost, dev_cost_pinned: mean cost over ideal cost on the development traces, of the
            averaged weights (see ``validation.ranking_costs``), at the steps where it was measured.
    """

    step: int
    phase: str
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: float
    dev_cost: float | None = None
    dev_cost_pinned: float | None = None


class Log:
    """Appends rows to a CSV file, each written at once."""

    def __init__(self, path: Path, step: int = 0, *, kind: type[Any] = Row) -> None:
        """Start a log, or go on with one after ``step``, dropping the rows after it.

        Args:
            path: of the file.
            step: the last one whose row stays.
            kind: dataclass of the rows; one of its fields is `step`.

        Raises:
            ValueError: the file exists and ``step`` is 0, or it is no log of such rows.
        """
        rows = read(path, kind=kind) if path.exists() and step else []
        if path.exists() and not step:
            raise ValueError(f"log: {path} exists, expected a new file or a resumed training")
        with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(kind))
            writer.writerows(_cells(row) for row in rows if row.step <= step)
        self._file = path.open("a", newline="", encoding="utf-8")

    def add(self, row: Any) -> None:
        """Write one row."""
        csv.writer(self._file).writerow(_cells(row))
        self._file.flush()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read(path: Path, *, kind: type[Any] = Row) -> list[Any]:
    """The rows of a log, of the class ``kind``.

    Raises:
        ValueError: something else, or a row cut short.
    """
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    columns = fields(kind)
    names = [field.name for field in columns]
    if not lines or lines[0] != names:
        raise ValueError(f"log: {path} does not begin with the columns {','.join(names)}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            values = [_value(f.type, cell) for f, cell in zip(columns, line, strict=True)]
            rows.append(kind(*values))
        except ValueError as error:
            raise ValueError(f"log: {path}, line {number} is malformed: {line}") from error
    return rows


def _value(annotation: Any, cell: str) -> Any:
    """A cell as its column's annotation says, which is text here."""
    if annotation == "float | None" and not cell:
        return None
    return {"int": int, "str": str}.get(annotation, float)(cell)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw loss, development cost, gradient norm and learning rate against the step, as a PNG.

    Needs matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (loss, dev, norm) = plt.subplots(
        3, 1, figsize=(9, 9), sharex=True, layout="constrained", height_ratios=(2, 2, 1)
    )
    for i, phase in enumerate(dict.fromkeys(row.phase for row in rows)):
        own = [row for row in rows if row.phase == phase]
        steps, losses = [row.step for row in own], [row.loss for row in own]
        # Losses of different objectives have different scales, so each has an axis of its own.
        axis = loss if i == 0 else loss.twinx()
        axis.spines.right.set_position(("outward", 75 * max(0, i - 1)))
        axis.plot(steps, losses, color=f"C{i}", alpha=0.3, lw=0.8)
        axis.plot(steps, smoothed(losses), color=f"C{i}")
        axis.set_ylabel(f"loss: {phase}", color=f"C{i}")
    measured = [row for row in rows if row.dev_cost is not None]
    for name, label in (("dev_cost", "by score"), ("dev_cost_pinned", "sinks and recent first")):
        values = [getattr(row, name) for row in measured]
        dev.plot([row.step for row in measured], values, "o-", ms=3, label=label)
    dev.legend()
    dev.set_ylabel("cost / ideal cost, held-out traces")
    steps = [row.step for row in rows]
    norm.plot(steps, [row.gradient_norm for row in rows], lw=0.8)
    norm.set(xlabel="step", ylabel="gradient norm of a head", yscale="log")
    rate = norm.twinx()
    rate.plot(steps, [row.learning_rate for row in rows], color="C3", lw=0.8)
    rate.set_ylabel("learning rate", color="C3")
    with replacing(path) as draft:
        figure.savefig(draft, dpi=120, format="png")
    plt.close(figure)


def smoothed(values: Sequence[float], decay: float = 0.9) -> list[float]:
    """Moving average, corrected for its start."""
    total, weight, result = 0.0, 0.0, []
    for value in values:
        total, weight = decay * total + (1 - decay) * value, decay * weight + (1 - decay)
        result.append(total / weight)
    return result


def _cells(row: Any) -> list[str]:
    """Six digits: a log is to be read, and thousands of steps stay small."""
    return [_cell(value) for value in asdict(row).values()]


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
