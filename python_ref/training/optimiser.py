"""The optimiser: AdamW with warm-up, cosine, clipping and averaging, for many networks at once.

Every (layer, head) is a network of its own, so gradients are clipped head by head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from python_ref.agents import Agent
from python_ref.training.recipe import WARM_UP, Phase, Recipe

_MOMENTS = ("exp_avg", "exp_avg_sq")


def scheduled(step: int, steps: int, peak: float) -> float:
    """Learning rate of ``step`` = 0, 1, ...: linear warm-up, then cosine to peak / 100."""
    warm_up = max(1, min(WARM_UP, steps // 10))
    cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * min(1.0, (step + 1) / warm_up) * cosine


class Optimiser:
    """Updates an agent during one phase and keeps the moving average of its weights.

    Attributes:
        average: name to parameter. The decay grows to ``recipe.average``, so that a short phase is
            not held back by the weights it began with.
    """

    def __init__(self, agent: Agent, phase: Phase, recipe: Recipe) -> None:
        """Start a phase."""
        self.agent = agent
        self.phase = phase
        self.recipe = recipe
        self.parameters = dict(agent.named_parameters())
        self.average = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.adamw = torch.optim.AdamW(
            self.parameters.values(),
            lr=0.0,
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    def learning_rate(self, step: int) -> float:
        """Of ``step`` = 0, 1, ... of the phase, see ``scheduled``."""
        return scheduled(step, self.phase.steps, self.phase.learning_rate)

    def gradient_norm(self) -> Tensor:
        """Norm [L, H] of each head's gradient."""
        squares = [g.square().flatten(2).sum(dim=-1) for g in self._gradients()]
        return torch.stack(squares).sum(dim=0).sqrt()

    @torch.no_grad()
    def step(self, step: int, norm: Tensor) -> None:
        """Clip each head's gradient, of the given norm [L, H], and update the weights."""
        scale = (self.recipe.clip / norm.clamp(min=1e-12)).clamp(max=1.0)
        for g in self._gradients():
            g.mul_(scale.view(*scale.shape, *[1] * (g.dim() - 2)))
        for group in self.adamw.param_groups:
            group["lr"] = self.learning_rate(step)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        weights = [p.detach() for p in self.parameters.values()]
        decay = min(self.recipe.average, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)

    @torch.no_grad()
    def finish(self) -> None:
        """Put the averaged weights into the agent."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.average[name])

    def state(self) -> dict[str, Tensor]:
        """Averages and moments by name, all [L, H, ...]."""
        tensors = {f"average/{name}": t for name, t in self.average.items()}
        for name, parameter in self.parameters.items():
            for moment in _MOMENTS:
                tensors[f"{moment}/{name}"] = self.adamw.state[parameter][moment]
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go on after ``step`` steps from what ``state`` gave then."""
        for name, parameter in self.parameters.items():
            self.average[name].copy_(tensors[f"average/{name}"])
            self.adamw.state[parameter] = {
                "step": torch.tensor(float(step), device=parameter.device),
                **{m: tensors[f"{m}/{name}"].to(parameter.device).clone() for m in _MOMENTS},
            }

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters.values() if p.grad is not None]
