"""The choices of a gate's training, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from python_ref.gates.gate import BIAS, WIDTH


@dataclass(frozen=True)
class GateRecipe:
    """Everything that decides what a training gives, beside the model and the sequences.

    Attributes:
        steps: updates of the weights.
        sequences: of a step.
        capacity: M, the entries that a row (layer, KV head) may hold on average before the hinge
            of `loss.capacity_loss` sets in. Without it nothing fades.
        capacity_weight: of that hinge, beside the mean of KL and cross-entropy.
        learning_rate: peak value; warm-up, then cosine to a hundredth (`optimiser.scheduled`).
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        width, bias: of the gate, see `RetentionGate`.
        seed: of the initial weights.

    The defaults are the paper's, for thousands of steps on thousands of tokens.
    """

    steps: int = 2000
    sequences: int = 1
    capacity: float = 128.0
    capacity_weight: float = 1.0
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    clip: float = 1.0
    width: int = WIDTH
    bias: float = BIAS
    seed: int = 0

    def __post_init__(self) -> None:
        """Check everything."""
        for name in ("steps", "sequences", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: got {value!r}, expected an int, at least 1")
        for name in ("capacity", "learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected above 0")
        for name in ("capacity_weight", "weight_decay", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 0")

    def as_json(self) -> dict[str, Any]:
        """This recipe as JSON values, for files."""
        return dataclasses.asdict(self)
