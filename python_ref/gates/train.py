"""Training a gate for a frozen model: one sequence after the other, each seen once.

For every sequence the model runs twice. As it is, for the hidden states that the gate reads (in a
prefill it will read the same) and for the distribution to come close to; and with tokens that fade
as the gate says, which the gradient goes back through.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from python_ref.gates.attention import fading
from python_ref.gates.gate import RetentionGate
from python_ref.gates.hidden import run
from python_ref.gates.log import GateRow
from python_ref.gates.loss import Head, capacity_loss, distillation, output_head, retained
from python_ref.gates.recipe import GateRecipe
from python_ref.model_info import inspect_model
from python_ref.training.checkpoint import Checkpoint, tensors_under
from python_ref.training.corpus import generator_for
from python_ref.training.distributed import Parallel
from python_ref.training.log import Log
from python_ref.training.optimiser import scheduled

Progress = Callable[[GateRow], None]
_MOMENTS = ("exp_avg", "exp_avg_sq")


def _silent(row: GateRow) -> None:
    """Report nothing."""


class GateTrainer:
    """One training, from its start or from a checkpoint to its end.

    Attributes:
        gate: in training.
        start: steps that the checkpoint has behind it.
    """

    def __init__(
        self,
        model: Any,
        sequences: Iterator[Sequence[int]],
        recipe: GateRecipe,
        *,
        data: Mapping[str, Any] | None = None,
        name: str = "",
        checkpoint: Path | None = None,
        checkpoint_every: int = 25,
        resume: bool = False,
        log: Path | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        """Check everything, and read the checkpoint to go on from; nothing is written yet.

        Args:
            model: a transformers decoder in eval mode; its weights stay as they are.
            sequences: token ids of each, at least 2; as many as all steps need, from the first on
                also where a training goes on.
            recipe: every choice that decides the result.
            data: JSON values that say what the sequences are.
            name: of the model, for provenance.
            checkpoint: folder for checkpoints, one every ``checkpoint_every`` steps and at the end;
                each replaces the one before.
            checkpoint_every: see ``checkpoint``.
            resume: go on from the checkpoint in the folder, if there is one.
            log: CSV file to write, see ``log.GateRow``.
            parallel: this process among others, which divide the sequences of a step.

        Raises:
            ValueError: a model that no gate can be trained for, a checkpoint that does not fit, or
                a checkpoint or log that would be overwritten.
        """
        if checkpoint_every < 1:
            raise ValueError(f"checkpoint_every: got {checkpoint_every}, expected at least 1")
        self.model, self.sequences, self.recipe = model, sequences, recipe
        self.folder, self.checkpoint_every, self.log_path = checkpoint, checkpoint_every, log
        self.parallel = parallel or Parallel()
        self.info = inspect_model(model, name or None)
        self.head: Head = output_head(model)
        self.seconds = 0.0
        hidden, _ = run(model, torch.tensor([[0, 1]]))
        self.config: dict[str, Any] = {
            "recipe": recipe.as_json(),
            "model": self.info.fingerprint,
            "data": dict(data or {}),
        }
        self.gate = RetentionGate(
            self.info.layers,
            self.info.kv_heads,
            hidden.shape[-1],
            width=recipe.width,
            bias=recipe.bias,
            model_fingerprint=self.info.fingerprint,
            generator=generator_for("gate", recipe.seed),
        ).to(model.device)
        # Where nothing fades yet, log sigmoid(18) has a slope of 1.5e-8: the usual eps would drown
        # the first gradients.
        self.adamw = torch.optim.AdamW(
            self.gate.parameters(), lr=0.0, weight_decay=recipe.weight_decay, eps=1e-15
        )
        self.share = self.parallel.items(recipe.sequences)
        self.start = self._restore(resume)
        if log is not None and log.exists() and not self.start:
            raise ValueError(f"log: {log} exists, expected a new file or a resumed training")

    def run(self, progress: Progress = _silent) -> RetentionGate:
        """Train to the end.

        Args:
            progress: called after each step.

        Returns:
            The gate, with its provenance.

        Raises:
            ValueError: the sequences end before the steps do, or one is too short.
            FloatingPointError: a loss or gradient is not finite; the last checkpoint stays.
        """
        count = self.recipe.sequences
        with ExitStack() as stack:
            stack.enter_context(_frozen(self.model))
            log = None
            if self.log_path is not None and self.parallel.is_main:
                log = stack.enter_context(Log(self.log_path, self.start, kind=GateRow))
            coming = itertools.islice(self.sequences, self.start * count, None)
            for step in range(self.start, self.recipe.steps):
                drawn = list(itertools.islice(coming, count))
                if len(drawn) < count:
                    raise ValueError(
                        f"sequences: ended after {step * count + len(drawn)}, expected "
                        f"{self.recipe.steps * count}"
                    )
                row = self._step(step, drawn[self.share])
                if log is not None:
                    log.add(row)
                if (step + 1) % self.checkpoint_every == 0 or step + 1 == self.recipe.steps:
                    self._save(step + 1)
                progress(row)
        self.gate.provenance = self.provenance(self.recipe.steps)
        return self.gate

    def provenance(self, steps: int) -> dict[str, Any]:
        """How the gate was trained, as JSON values for its file."""
        versions = {
            name: importlib.metadata.version(name) for name in ("kvp-ext", "torch", "transformers")
        }
        return {
            "recipe": self.recipe.as_json(),
            "model": self.info.name,
            "data": self.config["data"],
            "steps": steps,
            "seconds": round(self.seconds),
            "versions": versions | {"python": platform.python_version()},
        }

    def _step(self, step: int, drawn: Sequence[Sequence[int]]) -> GateRow:
        """One update of the weights."""
        started = time.perf_counter()
        parts = []
        for ids in drawn:
            loss, numbers = self._losses(ids)
            torch.autograd.backward(loss / len(drawn))
            parts.append(numbers)
        numbers = torch.stack(parts).mean(dim=0)
        parameters = list(self.gate.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        self.parallel.average([*gradients, numbers])
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        if not (bool(torch.isfinite(numbers).all()) and bool(torch.isfinite(norm))):
            raise FloatingPointError(
                f"step {step + 1}: the loss is {numbers[0].item()} and the gradient's norm "
                f"{norm.item()}, expected finite numbers; try a lower learning rate"
            )
        rate = scheduled(step, self.recipe.steps, self.recipe.learning_rate)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.seconds += time.perf_counter() - started
        values: list[float] = numbers.tolist()
        return GateRow(step + 1, *values, rate, norm.item(), self.seconds)  # type: ignore[call-arg]

    def _losses(self, sequence: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The loss of one sequence, and a row's numbers from `loss` to `tokens`."""
        if len(sequence) < 2:
            raise ValueError(f"sequences: got one of {len(sequence)} tokens, expected at least 2")
        ids = torch.tensor([list(sequence)], device=self.model.device)
        hidden, full = run(self.model, ids)
        log_beta = self.gate.log_beta(hidden)
        with fading(self.model, log_beta):
            last = self.model.base_model(ids, use_cache=False).last_hidden_state
        lost = distillation(last[:, :-1], full[:, :-1], ids[:, 1:], self.head)
        held = retained(log_beta)
        rows = self.gate.layers * self.gate.kv_heads
        excess = capacity_loss(held, self.recipe.capacity, rows)
        loss = lost.loss + self.recipe.capacity_weight * excess
        tokens = held.new_tensor(float(len(sequence)))
        numbers = (*(loss, lost.kl, lost.cross_entropy, lost.full_cross_entropy, excess),)
        return loss, torch.stack([*numbers, held[0, -1] / rows, tokens]).detach()

    def _save(self, steps: int) -> None:
        if self.folder is None or not self.parallel.is_main:
            return
        tensors = {f"gate/{name}": p for name, p in self.gate.named_parameters()}
        for name, parameter in self.gate.named_parameters():
            for moment in _MOMENTS:
                tensors[f"{moment}/{name}"] = self.adamw.state[parameter][moment]
        Checkpoint(self.config, 0, steps, self.seconds, tensors).save(self.folder)

    @torch.no_grad()
    def _restore(self, resume: bool) -> int:
        """Go on from the checkpoint, if any; returns the steps that it has behind it."""
        if self.folder is None:
            if resume:
                raise ValueError("resume: got no checkpoint folder, expected one to resume from")
            return 0
        try:
            state = Checkpoint.load(self.folder)
        except FileNotFoundError:
            return 0
        if not resume:
            raise ValueError(
                f"checkpoint: {self.folder} holds one of a training at step {state.step}; expected "
                "resume, or another folder"
            )
        state.check(self.config, self.folder)
        self.gate.load_state_dict(tensors_under(state.tensors, "gate/"))
        for name, parameter in self.gate.named_parameters():
            self.adamw.state[parameter] = {
                "step": torch.tensor(float(state.step)),
                **{m: state.tensors[f"{m}/{name}"].to(parameter.device) for m in _MOMENTS},
            }
        self.seconds = state.seconds
        return state.step


@contextmanager
def _frozen(model: torch.nn.Module) -> Iterator[None]:
    """The model's weights get no gradients."""
    wanting = [p for p in model.parameters() if p.requires_grad]
    for p in wanting:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in wanting:
            p.requires_grad_(True)
