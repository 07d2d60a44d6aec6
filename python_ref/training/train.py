"""Training: all heads at once, over traces of many contexts.

First a regression on log-utility, on a few contexts a step; then, if asked for, the exact expected
cost under Plackett-Luce, on one context a step, which teaches the ranking itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from python_ref.agents import Agent, SmallAgent
from python_ref.training.objectives import exact_plackett_luce, log_utility_regression
from python_ref.training.traces import Trace


@dataclass(frozen=True)
class Recipe:
    """Choices of the training; the defaults were made on the development split.

    Attributes:
        steps, contexts, tokens: of the regression: steps, contexts a step, tokens drawn of each.
        ranking_steps, ranking_tokens: of the ranking phase.
        learning_rate, ranking_learning_rate: peak values; warm-up, then cosine to a hundredth.
        marked_weight: how much likelier a token of a fact is drawn than another.
        floor: of the log-utility, see `objectives.log_utility`.
        average: decay of the exponential moving average of the weights, which is the result.
        seed: of initialisation and sampling.
    """

    steps: int = 400
    contexts: int = 8
    tokens: int = 64
    ranking_steps: int = 0
    ranking_tokens: int = 384
    learning_rate: float = 3e-3
    ranking_learning_rate: float = 5e-4
    weight_decay: float = 1e-3
    marked_weight: float = 4.0
    floor: float = 3e-5
    average: float = 0.98
    seed: int = 0


class Corpus:
    """The tokens of many traces side by side: k, v [L, H, N, D], utility [L, H, N], pos [N]."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        if not traces:
            raise ValueError("traces: got none, expected at least one")
        lengths = [trace.utility.shape[-1] for trace in traces]
        self.k = torch.cat([trace.k for trace in traces], dim=2)
        self.v = torch.cat([trace.v for trace in traces], dim=2)
        self.utility = torch.cat([trace.utility for trace in traces], dim=2)
        self.marked = torch.cat([trace.marked for trace in traces])
        self.pos = torch.cat([torch.arange(n) for n in lengths])
        self.ranges = list(zip(_starts(lengths), lengths, strict=True))
        self.longest = max(lengths)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """k, v [L, 1, H, n, D] in fp32, pos [n] and utility [L, H, n] of the tokens `index`."""
        k, v = (x.index_select(2, index).float().unsqueeze(1) for x in (self.k, self.v))
        return k, v, self.pos[index], self.utility.index_select(2, index)


def train(
    traces: Sequence[Trace],
    recipe: Recipe,
    progress: Callable[[str, int, float], None] = lambda phase, step, loss: None,
) -> SmallAgent:
    """Trains a policy for every head that the traces have.

    Args:
        progress: called after each step with the phase, the step and the loss.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    corpus = Corpus(traces)
    generator = torch.Generator().manual_seed(recipe.seed)
    layers, heads, tokens, dim_k = corpus.k.shape
    agent = SmallAgent(
        layers,
        heads,
        dim_k,
        corpus.v.shape[-1],
        position_rows=corpus.longest,
        generator=generator,
    )
    sample = torch.randperm(tokens, generator=generator)[:2048]
    k, v, _, utility = corpus.batch(sample)
    agent.fit_standardisation(k, v)
    with torch.no_grad():  # start at the mean, which saves the first steps
        agent.output.bias.copy_(torch.log(utility + recipe.floor).mean(dim=-1, keepdim=True))

    weights = 1 + (recipe.marked_weight - 1) * corpus.marked.float()
    lengths = torch.tensor([float(length) for _, length in corpus.ranges])

    def regression_loss() -> Tensor:
        chosen = torch.multinomial(lengths, recipe.contexts, replacement=True, generator=generator)
        parts = []
        for start, length in (corpus.ranges[i] for i in chosen.tolist()):
            own = weights[start : start + length]
            drawn = torch.multinomial(own, recipe.tokens, replacement=True, generator=generator)
            parts.append(start + drawn)
        k, v, pos, utility = corpus.batch(torch.cat(parts))
        grouped = (recipe.contexts, recipe.tokens)
        scores = agent(k, v, pos).squeeze(1).unflatten(-1, grouped)
        return log_utility_regression(scores, utility.unflatten(-1, grouped), recipe.floor)

    def ranking_loss() -> Tensor:
        which = int(torch.randint(len(corpus.ranges), (), generator=generator))
        start, length = corpus.ranges[which]
        index = start + torch.randperm(length, generator=generator)[: recipe.ranking_tokens]
        k, v, pos, utility = corpus.batch(index)
        return exact_plackett_luce(agent(k, v, pos).squeeze(1), utility)

    def phase(name: str, loss_of: Callable[[], Tensor], steps: int, rate: float) -> None:
        _optimise(agent, loss_of, steps, rate, recipe, lambda i, loss: progress(name, i, loss))

    phase("regression", regression_loss, recipe.steps, recipe.learning_rate)
    phase("ranking", ranking_loss, recipe.ranking_steps, recipe.ranking_learning_rate)
    return agent


def _optimise(
    agent: Agent,
    loss_of: Callable[[], Tensor],
    steps: int,
    rate: float,
    recipe: Recipe,
    progress: Callable[[int, float], None],
) -> None:
    """Minimises the loss and leaves the moving average of the weights in the agent."""
    if steps == 0:
        return
    parameters = list(agent.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=recipe.weight_decay)
    warm_up = max(1, min(50, steps // 10))

    def schedule(step: int) -> float:
        done = step / steps
        return min(1.0, (step + 1) / warm_up) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, schedule)
    averages = [parameter.detach().clone() for parameter in parameters]
    # Every head is a network of its own, so the norm is clipped at what one network would have.
    limit = 5.0 * math.sqrt(agent.layers * agent.kv_heads)
    for step in range(steps):
        loss = loss_of()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss became {loss.item()} at step {step}")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimiser.step()
        scheduler.step()
        torch._foreach_lerp_(averages, [p.detach() for p in parameters], 1 - recipe.average)
        progress(step, loss.item())
    with torch.no_grad():
        for parameter, average in zip(parameters, averages, strict=True):
            parameter.copy_(average)


def _starts(lengths: Sequence[int]) -> list[int]:
    starts = [0]
    for length in lengths[:-1]:
        starts.append(starts[-1] + length)
    return starts
