"""`kvp-ext train`: a policy from traces."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def train_policy(
    traces: list[Path] = typer.Option(
        ..., help="A folder made by `kvp-ext trace`; several are joined."
    ),
    out: Path = typer.Option(..., help="The policy file to write, *.safetensors."),
    dev: list[Path] = typer.Option(
        [], help="A folder of held-out traces to measure the ranking on; likewise."
    ),
    kind: list[str] = typer.Option(
        [], help="Train on documents of these kinds only: a pattern such as 'ruler/*'."
    ),
    without: list[str] = typer.Option([], help="Leave documents of these kinds out."),
    objective: list[str] = typer.Option(
        ["regression"],
        help="A phase, NAME[:STEPS][,KEY=VALUE]..., for example rloo:150,tokens=256,rankings=16. "
        "Given several times, phases follow one another. Names: regression, "
        "regression_absolute, regression_utility, exact, rloo, rloo_batch, pairwise, listwise, "
        "listmle, softsort.",
    ),
    architecture: str = typer.Option(
        "small", help="small, or paper: the paper's agent, some 20 times dearer."
    ),
    agent: list[str] = typer.Option(
        [],
        help="KEY=VALUE: an option of the agent, such as hidden=32 or inputs=k+pos.",
    ),
    steps: int | None = typer.Option(None, help="Of each phase that does not say; else 400."),
    items: int | None = typer.Option(
        None, help="Contexts a step, of each phase that does not say. Else the objective's default."
    ),
    tokens: int | None = typer.Option(
        None, help="Drawn of each context, likewise. Else the objective's default."
    ),
    lr: float | None = typer.Option(
        None, help="Peak learning rate, likewise. Else the objective's default."
    ),
    average: float = typer.Option(0.98, help="Decay of the moving average of the weights."),
    seed: int = typer.Option(0, help="Of initial weights and of everything drawn."),
    sinks: int = typer.Option(4, help="First entries that evictions will keep in any case."),
    recent: int = typer.Option(16, help="Last entries that evictions will keep in any case."),
    checkpoint: Path | None = typer.Option(None, help="Folder for a checkpoint to resume from."),
    resume: bool = typer.Option(False, "--resume", help="Go on from the checkpoint, if any."),
    every: int = typer.Option(100, help="Steps between checkpoints and measurements on --dev."),
    log: Path | None = typer.Option(None, help="CSV file to write, a row a step."),
    plot: Path | None = typer.Option(None, help="PNG picture of the log. Needs --log."),
    parallel: str = typer.Option(
        "data", help="What the processes of torchrun divide: data (contexts) or heads (layers)."
    ),
    threads: int | None = typer.Option(None, help="CPU threads of a process."),
    device: str = typer.Option("cpu", help="cpu or cuda."),
) -> None:
    """Train a policy for every KV head of a model, from its traces.

    For several processes or GPUs: torchrun --nproc-per-node 8 -m kvp_ext.cli train ...
    """
    import torch

    from kvp_ext import Policy
    from python_ref.training.distributed import Parallel
    from python_ref.training.log import plot as draw
    from python_ref.training.log import read
    from python_ref.training.trace_pool import TracePool
    from python_ref.training.train import Recipe, Trainer, make_agent, parse_phase

    if plot is not None and log is None:
        raise ValueError("--plot: got no --log, expected one to draw")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install matplotlib")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out: the folder {out.parent} does not exist")
    if threads is not None:
        torch.set_num_threads(threads)
    defaults = {"steps": steps, "items": items, "tokens": tokens, "learning_rate": lr}
    recipe = Recipe(
        tuple(parse_phase(text, **defaults) for text in objective),
        architecture=architecture,
        agent=_options(agent),
        average=average,
        sinks=sinks,
        recent=recent,
        seed=seed,
    )
    group = Parallel.start(parallel, device)
    try:
        trainer = Trainer(
            TracePool(traces, kinds=kind, without=without),
            recipe,
            dev=TracePool(dev) if dev else None,
            dev_every=every,
            checkpoint=checkpoint,
            checkpoint_every=every,
            resume=resume,
            log=log,
            parallel=group,
            device=device,
        )
        if make_agent(recipe, trainer.corpus).length_aware:
            raise ValueError(
                "--agent: the inputs include age, expected features of k, v and pos alone: a "
                "policy file holds no other (bench/ablation.py compares them)"
            )
        console = Console(quiet=not group.is_main)
        done = trainer.steps_done
        if done:
            console.print(f"resumed after step {done} of {recipe.steps}")
        elif resume:
            console.print(f"no checkpoint in {checkpoint}: starting at the beginning")
        with progress_bar(console) as bar:
            task = bar.add_task("", total=recipe.steps, completed=done)

            def advance(phase: str, step: int, loss: float) -> None:
                bar.update(task, advance=1, description=f"{phase} {loss:.3f}")

            try:
                trained = trainer.run(advance)
            except FloatingPointError as error:
                raise RuntimeError(str(error)) from error
        if group.is_main:
            provenance = trainer.provenance() | {"processes": group.world, "parallel": parallel}
            policy = Policy.from_agent(
                trained, name=out.stem, provenance=provenance, sinks=sinks, recent=recent
            )
            policy.save(out)
            console.print(f"wrote {out}, {out.stat().st_size / 1e6:.1f} MB: {policy}")
            if trainer.dev_cost is not None:
                plain, pinned = (
                    x.mean().item() for x in (trainer.dev_cost.plain, trainer.dev_cost.pinned)
                )
                console.print(
                    f"cost / ideal cost on {len(trainer.dev or ())} held-out traces: {plain:.3f}, "
                    f"with sinks and recent tokens first {pinned:.3f}"
                )
            if log is not None and plot is not None:
                draw(read(log), plot)
                console.print(f"wrote {plot}")
    finally:
        group.stop()


def _options(texts: list[str]) -> dict[str, Any]:
    """KEY=VALUE options; whole numbers become ints."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--agent: got {text!r}, expected KEY=VALUE")
        options[key] = int(value) if value.isdecimal() else value
    return options


def progress_bar(console: Console) -> Progress:
    """A bar of steps, where there is a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet or not console.is_terminal,
    )
