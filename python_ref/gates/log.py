"""The log of a gate's training, in the CSV file of `python_ref.training.log`, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_ref.artifacts import replacing
from python_ref.training.log import smoothed


@dataclass(frozen=True)
class GateRow:
    """One step, means over its sequences.

    Attributes:
        step: counted from 1.
        loss: what is minimised.
        kl: KL(full || fading) in nats a token.
        cross_entropy, full_cross_entropy: of the next token, with and without fading.
        excess: the capacity hinge, 1 where nothing fades.
        held: entries of a row that are held at the sequence's end, on average.
        tokens: of a sequence.
        learning_rate, gradient_norm: of the step; the norm before clipping.
        seconds: of training until now.
    """

    step: int
    loss: float
    kl: float
    cross_entropy: float
    full_cross_entropy: float
    excess: float
    held: float
    tokens: float
    learning_rate: float
    gradient_norm: float
    seconds: float


def plot(rows: Sequence[GateRow], path: Path) -> None:
    """Draw what is lost, what is held and the gradient against the step, as a PNG.

    Needs matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [row.step for row in rows]
    figure, (lost, held, norm) = plt.subplots(
        3, 1, figsize=(9, 9), sharex=True, layout="constrained", height_ratios=(2, 2, 1)
    )

    def draw(axis: Any, values: Sequence[float], label: str, color: str) -> None:
        axis.plot(steps, values, color=color, alpha=0.3, lw=0.8)
        axis.plot(steps, smoothed(values), color=color, label=label)

    draw(lost, [row.kl for row in rows], "KL(full || fading)", "C0")
    more = [row.cross_entropy - row.full_cross_entropy for row in rows]
    draw(lost, more, "cross-entropy, more than without fading", "C1")
    lost.set_ylabel("nats a token")
    lost.legend()
    draw(held, [row.held / row.tokens for row in rows], "share of entries held at the end", "C2")
    draw(held, [row.excess for row in rows], "capacity hinge", "C4")
    held.set_ylim(0, 1.02)
    held.legend()
    norm.plot(steps, [row.gradient_norm for row in rows], lw=0.8)
    norm.set(xlabel="step", ylabel="gradient norm", yscale="log")
    rate = norm.twinx()
    rate.plot(steps, [row.learning_rate for row in rows], color="C3", lw=0.8)
    rate.set_ylabel("learning rate", color="C3")
    with replacing(path) as draft:
        figure.savefig(draft, dpi=120, format="png")
    plt.close(figure)
