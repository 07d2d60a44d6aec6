"""`kvp-ext train-gate`: a retention gate for a frozen model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from .loading import load_model, parse_lengths
from .train import progress_bar


def train_gate(
    model: str = typer.Option(
        "smollm2", help="A Hugging Face name or folder, or smollm2 for the packaged model."
    ),
    source: list[str] = typer.Option(
        ...,
        metavar="NAME[=WEIGHT]",
        help="Where documents come from: needles, dialogue, novel, essay, ruler, ruler/TASK or a "
        "file of yours. Repeat it to mix.",
    ),
    out: Path = typer.Option(..., help="The gate file to write, *.safetensors."),
    tokens: int = typer.Option(512, min=2, help="Longest sequence: a context and its questions."),
    lengths: str | None = typer.Option(
        None, help="Shortest and longest context; by default a half and 7/8 of --tokens."
    ),
    capacity: float | None = typer.Option(
        None, help="Entries a KV head may hold on average; by default an eighth of --tokens."
    ),
    capacity_weight: float = typer.Option(1.0, help="Of holding more, in the loss."),
    steps: int = typer.Option(2000, help="Updates of the weights."),
    sequences: int = typer.Option(1, help="Of a step; torchrun's processes divide them."),
    lr: float = typer.Option(2e-4, help="Peak learning rate."),
    width: int = typer.Option(512, help="Of the gate's two hidden layers."),
    bias: float = typer.Option(
        18.0, help="Of the gate's output at the start; at 18 nothing fades for thousands of tokens."
    ),
    seed: int = typer.Option(0, help="Of initial weights and documents."),
    checkpoint: Path | None = typer.Option(None, help="Folder for a checkpoint to resume from."),
    resume: bool = typer.Option(False, "--resume", help="Go on from the checkpoint, if any."),
    every: int = typer.Option(25, help="Steps between checkpoints."),
    log: Path | None = typer.Option(None, help="CSV file to write, a row a step."),
    plot: Path | None = typer.Option(None, help="PNG picture of the log. Needs --log."),
    threads: int | None = typer.Option(None, help="CPU threads of a process."),
    dtype: str = typer.Option("auto", help="auto, float32, bfloat16 or float16."),
    device: str = typer.Option("auto", help="Where the model runs: auto, cpu, cuda, cuda:1."),
) -> None:
    """Train a retention gate: how fast each token's worth fades, from its hidden states.

    For several GPUs: torchrun --nproc-per-node 8 -m kvp_ext.cli train-gate ...
    """
    import torch

    from python_ref.data.mixture import documents, parse_sources
    from python_ref.gates import gate_file
    from python_ref.gates.log import GateRow
    from python_ref.gates.log import plot as draw
    from python_ref.gates.recipe import GateRecipe
    from python_ref.gates.sequences import sequences as of
    from python_ref.gates.train import GateTrainer
    from python_ref.training.distributed import Parallel
    from python_ref.training.log import read

    if plot is not None and log is None:
        raise ValueError("--plot: got no --log, expected one to draw")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install matplotlib")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out: the folder {out.parent} does not exist")
    span = parse_lengths(lengths or f"{max(1, tokens // 2)}:{max(1, tokens * 7 // 8)}")
    if span[1] > tokens:
        raise ValueError(f"--lengths: got {span[1]}, expected at most --tokens {tokens}")
    if threads is not None:
        torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = GateRecipe(
        steps=steps,
        sequences=sequences,
        capacity=tokens / 8 if capacity is None else capacity,
        capacity_weight=capacity_weight,
        learning_rate=lr,
        width=width,
        bias=bias,
        seed=seed,
    )
    weights = parse_sources(source)
    choice: dict[str, Any] = {"lengths": span, "split": "train", "seed": seed}
    group = Parallel.start("data", device)
    try:
        console = Console(quiet=not group.is_main)
        with console.status(f"loading {model}"):
            network, tokenizer = load_model(model, device=device, dtype=dtype)
        stream = documents(tokenizer, weights, steps * sequences, **choice)
        data = {"sources": weights, "tokens": tokens, **choice, "lengths": list(span)}
        trainer = GateTrainer(
            network,
            of(stream, tokens, seed),
            recipe,
            data=data,
            name=model,
            checkpoint=checkpoint,
            checkpoint_every=every,
            resume=resume,
            log=log,
            parallel=group,
        )
        if trainer.start:
            console.print(f"resumed after step {trainer.start} of {steps}")
        elif resume:
            console.print(f"no checkpoint in {checkpoint}: starting at the beginning")
        with progress_bar(console) as bar:
            task = bar.add_task("", total=steps, completed=trainer.start)

            def advance(row: GateRow) -> None:
                text = f"KL {row.kl:.3f}, holds {row.held:.0f} of {row.tokens:.0f}"
                bar.update(task, advance=1, description=text)

            try:
                gate = trainer.run(advance)
            except FloatingPointError as error:
                raise RuntimeError(str(error)) from error
        if group.is_main:
            gate.name = out.stem
            gate_file.write(gate, out)
            size = out.stat().st_size / 1e6
            console.print(f"wrote {out}, {size:.1f} MB, {trainer.seconds / steps:.1f} s a step")
            if log is not None and plot is not None:
                draw(read(log, kind=GateRow), plot)
                console.print(f"wrote {plot}")
    finally:
        group.stop()
