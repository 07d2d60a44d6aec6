"""Training: all heads at once, over traces of many contexts, one phase after the other."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from python_ref.agents import PaperAgent, SmallAgent
from python_ref.training.checkpoint import Checkpoint, slice_layers, tensors_under
from python_ref.training.corpus import Corpus, check_trace, generator_for
from python_ref.training.distributed import Parallel
from python_ref.training.log import Log, Row
from python_ref.training.objectives import Batch
from python_ref.training.optimiser import Optimiser
from python_ref.training.recipe import Phase, Recipe, parse_phase
from python_ref.training.trace_pool import TracePool
from python_ref.training.traces import Trace
from python_ref.training.validation import ranking_costs

__all__ = ["Phase", "Recipe", "Trainer", "parse_phase", "train"]

AnyAgent = SmallAgent | PaperAgent
Progress = Callable[[str, int, float], None]
FIT_ITEMS, FIT_TOKENS = 32, 64


def _silent(phase: str, step: int, loss: float) -> None:
    """Report nothing."""


def train(
    traces: Sequence[Trace], recipe: Recipe, progress: Progress = _silent, **options: Any
) -> AnyAgent:
    """Train a policy for every head that the traces have: ``Trainer(...).run(progress)``."""
    return Trainer(traces, recipe, **options).run(progress)


@dataclass(frozen=True)
class DevCost:
    """Mean cost over ideal cost on the development traces (see ``validation.ranking_costs``).

    Attributes:
        plain, pinned: [L, H] of all layers.
    """

    plain: Tensor
    pinned: Tensor


class Trainer:
    """One training, from its start or from a checkpoint to its end.

    Attributes:
        corpus: the traces.
        start: where it begins, as (phase, step).
        dev_cost: the last measurement on the development traces.
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        recipe: Recipe,
        *,
        dev: Sequence[Trace] | None = None,
        dev_every: int = 100,
        checkpoint: Path | None = None,
        checkpoint_every: int = 100,
        resume: bool = False,
        log: Path | None = None,
        parallel: Parallel | None = None,
        in_memory: bool | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Check everything, and read the checkpoint to go on from; nothing is written yet.

        Args:
            traces: to train on.
            recipe: every choice that decides the result.
            dev: held-out traces to measure on, every ``dev_every`` steps and after each phase.
            dev_every: see ``dev``.
            checkpoint: folder for checkpoints, one every ``checkpoint_every`` steps and after each
                phase; each replaces the one before.
            checkpoint_every: see ``checkpoint``.
            resume: go on from the checkpoint in the folder, if there is one.
            log: CSV file to write, see ``log.Row``.
            parallel: this process among others, see ``distributed``.
            in_memory: copy the traces into memory, see ``corpus.Corpus``.
            device: to train on.

        Raises:
            ValueError: traces, a recipe or a checkpoint that do not fit, or a checkpoint or log
                that would be overwritten.
        """
        for name, value in (("dev_every", dev_every), ("checkpoint_every", checkpoint_every)):
            if value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")
        self.traces, self.recipe = traces, recipe
        self.dev, self.dev_every = dev, dev_every
        self.folder, self.checkpoint_every = checkpoint, checkpoint_every
        self.log_path = log
        self.parallel = parallel or Parallel()
        self.device = torch.device(device)
        self.corpus = Corpus(traces, in_memory=in_memory)
        for number, trace in enumerate(dev or ()):
            check_trace(f"dev[{number}]", trace, traces[0])
        if dev is not None and len(dev) == 0:
            raise ValueError("dev: got no traces, expected at least one")
        self.layers = self.parallel.layers(self.corpus.layers)
        for phase in recipe.phases:
            self.parallel.items(phase.items)
        self.dev_cost: DevCost | None = None
        self.seconds = 0.0
        self.config: dict[str, Any] = {
            "recipe": recipe.as_json(),
            "geometry": {
                name: getattr(self.corpus, name)
                for name in ("layers", "kv_heads", "head_dim_k", "head_dim_v", "longest")
            },
            "traces": {"count": len(traces), "fingerprint": self.corpus.fingerprint()},
        }
        self.state = self._checkpoint(resume)
        self.start = (self.state.phase, self.state.step) if self.state else (0, 0)
        if log is not None and log.exists() and not self.state:
            raise ValueError(f"log: {log} exists, expected a new file or a resumed training")

    def run(self, progress: Progress = _silent) -> AnyAgent:
        """Train to the end.

        Args:
            progress: called after each step with the phase's objective, the step of the phase and
                the loss.

        Returns:
            The agent of all layers with the averaged weights, on the CPU.

        Raises:
            FloatingPointError: a loss or gradient is not finite; the last checkpoint stays.
        """
        agent = self._agent()
        first_phase, first_step = self.start
        with ExitStack() as stack:
            log = None
            if self.log_path is not None and self.parallel.is_main:
                log = stack.enter_context(Log(self.log_path, self.steps_done))
            for number in range(first_phase, len(self.recipe.phases)):
                begin = first_step if number == first_phase else 0
                self._phase(agent, number, begin, log, progress)
            if self.dev is not None and self.dev_cost is None:
                self.dev_cost = self._measure(agent, dict(agent.named_parameters()))
        return self._whole(agent)

    @property
    def steps_done(self) -> int:
        """Steps that the checkpoint has behind it, of all phases."""
        return self._steps_before(*self.start)

    def provenance(self) -> dict[str, Any]:
        """How the policy was trained, as JSON values for its file."""
        versions = {name: importlib.metadata.version(name) for name in ("kvp-ext", "torch")}
        result = {
            "recipe": self.recipe.as_json(),
            "seed": self.recipe.seed,
            "steps": self.recipe.steps,
            "seconds": round(self.seconds),
            "traces": summary(self.traces) | self.config["traces"],
            "versions": versions | {"python": platform.python_version()},
        }
        if self.dev is not None and self.dev_cost is not None:
            result["dev"] = summary(self.dev) | {
                "cost": round(self.dev_cost.plain.mean().item(), 4),
                "cost_pinned": round(self.dev_cost.pinned.mean().item(), 4),
            }
        return result

    def _phase(
        self, agent: AnyAgent, number: int, begin: int, log: Log | None, progress: Progress
    ) -> None:
        """The steps of one phase from ``begin`` on."""
        phase = self.recipe.phases[number]
        optimiser = Optimiser(agent, phase, self.recipe)
        if begin:
            assert self.state is not None
            optimiser.restore(slice_layers(self.state.tensors, self.layers), begin)
        before = self._steps_before(number, 0)
        for step in range(begin, phase.steps):
            started = time.perf_counter()
            losses = self._losses(agent, number, step)
            torch.autograd.backward(losses.sum())
            if phase.definition.target is None and agent.output.bias.grad is not None:
                # A constant of all scores changes nothing: this gradient is rounding noise, which
                # Adam would blow up to steps of full size.
                agent.output.bias.grad.zero_()
            gradients = [p.grad for p in agent.parameters() if p.grad is not None]
            losses = losses.detach()
            self.parallel.average([*gradients, losses])
            norm = optimiser.gradient_norm()
            self._check_finite(number, step, losses, norm)
            optimiser.step(step, norm)
            self.seconds += time.perf_counter() - started

            last = step + 1 == phase.steps
            dev: tuple[float, float] | tuple[()] = ()
            if self.dev is not None and (last or (before + step + 1) % self.dev_every == 0):
                self.dev_cost = self._measure(agent, optimiser.average)
                dev = (self.dev_cost.plain.mean().item(), self.dev_cost.pinned.mean().item())
            heads = self._every_layer(torch.stack([losses, norm], dim=-1))
            loss, mean_norm = heads.mean(dim=(0, 1)).tolist()
            if log is not None:
                name = f"{number + 1} {phase.objective}"
                rate = optimiser.learning_rate(step)
                log.add(Row(before + step + 1, name, loss, rate, mean_norm, self.seconds, *dev))
            if last:
                optimiser.finish()
                self._save(agent, None, number + 1, 0)
            elif (before + step + 1) % self.checkpoint_every == 0:
                self._save(agent, optimiser, number, step + 1)
            progress(phase.objective, step, loss)

    def _losses(self, agent: AnyAgent, number: int, step: int) -> Tensor:
        """Losses [L, H] of one step on this process's items and layers."""
        phase, seed = self.recipe.phases[number], self.recipe.seed
        generator = generator_for("items", seed, number, step)
        drawn = self.corpus.draw(phase, phase.items, phase.tokens, generator)
        share = self.parallel.items(phase.items)
        own = range(*share.indices(phase.items))
        data = self.corpus.read([drawn[i] for i in own], self.layers, self.device)
        scores = agent(data.k, data.v, data.pos, data.length).squeeze(1)
        scores = scores.unflatten(-1, data.weight.shape)

        def gumbel(count: int) -> Tensor:
            """Noise of an item is the same whichever process holds the item or the head."""
            shape = (count, self.corpus.layers, *scores.shape[1:2], scores.shape[-1])
            parts = []
            for item in own:
                source = generator_for("noise", seed, number, step, item)
                noise = torch.empty(shape).exponential_(generator=source)
                parts.append(-noise[:, self.layers].log())
            return torch.stack(parts, dim=-2).to(self.device)

        weight = data.weight if phase.unbiased else None
        batch = Batch(weight, gumbel, self.parallel.every_item)
        losses: Tensor = phase.definition.loss(scores, data.utility, batch, **phase.options)
        return losses.mean(dim=-1)

    def _check_finite(self, number: int, step: int, losses: Tensor, norm: Tensor) -> None:
        for name, values in (("loss", losses), ("gradient", norm)):
            broken = (~torch.isfinite(values)).nonzero()
            if len(broken):
                layer, head = broken[0].tolist()
                kept = ""
                if self.folder is not None:
                    kept = f"; {self.folder} keeps the last checkpoint before it"
                raise FloatingPointError(
                    f"phase {number + 1} ({self.recipe.phases[number].objective}), step "
                    f"{step + 1}: the {name} became {values[layer, head].item()} in "
                    f"{len(broken)} heads, first in layer {layer + self.layers.start}, head "
                    f"{head}{kept}"
                )

    def _agent(self) -> AnyAgent:
        """The agent to go on with, of this process's layers."""
        agent = make_agent(self.recipe, self.corpus)
        if self.state is not None:
            agent.load_state_dict(tensors_under(self.state.tensors, "agent/"))
            self.seconds = self.state.seconds
        own = make_agent(self.recipe, self.corpus, self.layers.stop - self.layers.start)
        own.load_state_dict(slice_layers(agent.state_dict(), self.layers))
        own = own.to(self.device)
        if self.state is None:
            self._fit(own)
        return own

    @torch.no_grad()
    def _fit(self, agent: AnyAgent) -> None:
        """Standardise the inputs, and start at the mean target, which saves the first steps."""
        phase = self.recipe.phases[0]
        generator = generator_for("fit", self.recipe.seed)
        drawn = self.corpus.draw(Phase(marked_weight=1.0), FIT_ITEMS, FIT_TOKENS, generator)
        data = self.corpus.read(drawn, self.layers, self.device)
        if agent.standardise:
            agent.fit_standardisation(data.k, data.v)
        if target := phase.definition.target:
            mean = target(data.utility).mean(dim=(-2, -1))
            agent.output.bias.copy_(mean[..., None])

    def _measure(self, agent: AnyAgent, parameters: dict[str, Tensor]) -> DevCost:
        """The development cost of an agent with the given weights."""
        assert self.dev is not None
        weights = parameters | dict(agent.named_buffers())
        shared = self.parallel.mode == "data" and len(self.dev) >= self.parallel.world
        own = range(self.parallel.rank, len(self.dev), self.parallel.world)
        costs = ranking_costs(
            lambda *inputs: functional_call(agent, weights, inputs),
            (self.dev[i] for i in (own if shared else range(len(self.dev)))),
            length_aware=agent.length_aware,
            layers=self.layers,
            sinks=self.recipe.sinks,
            recent=self.recipe.recent,
            device=self.device,
        )
        total, items = costs.sum(dim=1), costs.new_tensor(costs.shape[1])
        self.parallel.average([total, items])
        plain, pinned = (self._every_layer(x).cpu() for x in total / items)
        return DevCost(plain, pinned)

    def _every_layer(self, own: Tensor) -> Tensor:
        return self.parallel.every_layer(own, self.corpus.layers)

    def _whole(self, own: AnyAgent) -> AnyAgent:
        """The agent of all layers, on the CPU."""
        agent = make_agent(self.recipe, self.corpus)
        state = own.state_dict()
        agent.load_state_dict({name: self._every_layer(t).cpu() for name, t in state.items()})
        return agent

    def _checkpoint(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to go on from."""
        if self.folder is None:
            if resume:
                raise ValueError("resume: got no checkpoint folder, expected one to resume from")
            return None
        try:
            state = Checkpoint.load(self.folder)
        except FileNotFoundError:
            return None
        if not resume:
            raise ValueError(
                f"checkpoint: {self.folder} holds one of a training at phase {state.phase + 1}, "
                f"step {state.step}; expected resume, or another folder"
            )
        state.check(self.config, self.folder)
        return state

    def _save(self, agent: AnyAgent, optimiser: Optimiser | None, phase: int, step: int) -> None:
        if self.folder is None:
            return
        tensors = {f"agent/{name}": t for name, t in agent.state_dict().items()}
        if optimiser is not None:
            tensors |= optimiser.state()
        tensors = {name: self._every_layer(t) for name, t in tensors.items()}
        if self.parallel.is_main:
            Checkpoint(self.config, phase, step, self.seconds, tensors).save(self.folder)

    def _steps_before(self, phase: int, step: int) -> int:
        return sum(p.steps for p in self.recipe.phases[:phase]) + step


def summary(traces: Sequence[Trace]) -> dict[str, Any]:
    """What traces are, as they tell it themselves if they can (see ``trace_pool.TracePool``)."""
    if isinstance(traces, TracePool):
        return traces.summary()
    return {"count": len(traces)}


def make_agent(recipe: Recipe, corpus: Corpus, layers: int | None = None) -> AnyAgent:
    """An untrained agent for the corpus's geometry, or for fewer layers of it."""
    options = dict(recipe.agent)
    if recipe.architecture == "paper":
        options.setdefault("standardise", True)
    kind: type[AnyAgent] = PaperAgent if recipe.architecture == "paper" else SmallAgent
    try:
        return kind(
            corpus.layers if layers is None else layers,
            corpus.kv_heads,
            corpus.head_dim_k,
            corpus.head_dim_v,
            position_rows=corpus.longest,
            generator=generator_for("agent", recipe.seed),
            **options,
        )
    except TypeError as error:
        raise ValueError(f"agent: got {dict(recipe.agent)}: {error}") from error
