"""The choices of a training, as data: phases of one objective each, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from python_ref.training.objectives import Objective, objectives

ARCHITECTURES = ("small", "paper")
WARM_UP = 100  # steps, or a tenth of a shorter phase


@dataclass(frozen=True)
class Phase:
    """Steps with one objective. What is None becomes the objective's default.

    Attributes:
        objective: a name of ``objectives.objectives()``.
        steps: how many; each is one update of the weights.
        items: of a step; an item is a context cached at one split point.
        tokens: drawn of each item.
        learning_rate: peak value; warm-up, then cosine to a hundredth.
        marked_weight: how much likelier a token of a fact is drawn than another. That changes the
            objective to the one of a context in which every marked token occurs so many times,
            which is meant: facts are few. See ``unbiased``.
        unbiased: weight the drawn tokens back to their share of the context, so that
            ``marked_weight`` lowers the variance only.
        options: of the loss, for example {"rankings": 16}.
    """

    objective: str = "regression"
    steps: int = 400
    items: int = None  # type: ignore[assignment]
    tokens: int = None  # type: ignore[assignment]
    learning_rate: float = None  # type: ignore[assignment]
    marked_weight: float = None  # type: ignore[assignment]
    unbiased: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fill in the objective's defaults and check everything."""
        if self.objective not in objectives():
            raise ValueError(
                f"objective: got {self.objective!r}, expected one of {list(objectives())}"
            )
        for name in ("items", "tokens", "learning_rate", "marked_weight"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.definition, name))
        for name in ("steps", "items", "tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: got {value!r}, expected an int, at least 1")
        for name in ("learning_rate", "marked_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected above 0")
        unknown = sorted(set(self.options) - set(self.definition.options))
        if unknown:
            raise ValueError(
                f"options of {self.objective}: got {unknown}, expected some of "
                f"{sorted(self.definition.options)}"
            )

    @property
    def definition(self) -> Objective:
        """The objective itself."""
        return objectives()[self.objective]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training gives, beside the traces.

    Attributes:
        phases: one after the other. Each starts from the averaged weights of the one before, with
            an optimiser of its own.
        architecture: "small" (``SmallAgent``) or "paper" (``PaperAgent``).
        agent: options of the agent's constructor, for example {"hidden": 32}.
        weight_decay: of AdamW.
        clip: largest norm of one head's gradient.
        average: decay of the exponential moving average of the weights, which is the result.
        sinks, recent: entries at both ends of a context that are kept whatever their score.
        seed: of initialisation and sampling.
    """

    phases: tuple[Phase, ...] = (Phase(),)
    architecture: str = "small"
    agent: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float = 1e-3
    clip: float = 5.0
    average: float = 0.98
    sinks: int = 4
    recent: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        """Check everything."""
        if not self.phases:
            raise ValueError("phases: got none, expected at least one")
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture: got {self.architecture!r}, expected one of {ARCHITECTURES}"
            )
        if not 0 <= self.average < 1:
            raise ValueError(f"average: got {self.average}, expected 0 <= average < 1")
        for name in ("weight_decay", "sinks", "recent", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 0")
        if not self.clip > 0:
            raise ValueError(f"clip: got {self.clip}, expected above 0")

    @property
    def steps(self) -> int:
        """Of all phases."""
        return sum(phase.steps for phase in self.phases)

    def as_json(self) -> dict[str, Any]:
        """This recipe as JSON values, for files."""
        return dataclasses.asdict(self) | {"phases": [dataclasses.asdict(p) for p in self.phases]}


def parse_phase(text: str, **defaults: Any) -> Phase:
    """A phase from text: NAME[:STEPS][,KEY=VALUE]...

    Keys are ``Phase``'s and the loss's options: "rloo:150,tokens=256,learning_rate=2e-4,
    rankings=16". ``defaults`` hold where the text says nothing.
    """
    head, *settings = text.split(",")
    name, _, steps = head.partition(":")
    values: dict[str, Any] = {"steps": steps} if steps else {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"objective {text!r}: got {setting!r}, expected KEY=VALUE")
        values[key.strip()] = value
    fields = {f.name for f in dataclasses.fields(Phase)} - {"objective", "options"}
    chosen = {k: v for k, v in defaults.items() if v is not None}
    options = {}
    for key, value in values.items():
        number = _number(value)
        if number is None:
            raise ValueError(f"objective {text!r}: {key} is {value!r}, expected a number")
        if key in fields:
            chosen[key] = bool(number) if key == "unbiased" else number
        else:
            options[key] = number
    return Phase(name.strip(), **chosen, options=options)


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
