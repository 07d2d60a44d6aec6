"""`kvp-ext eval`: what every method's eviction costs a model, as tables and curves."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from .loading import load_model, parse_lengths

ALL_BUDGETS = ["0.5", "0.25", "0.125", "0.0625"]


def evaluate(
    model: str = typer.Option(
        "smollm2", help="A Hugging Face name or folder, or smollm2 for the packaged model."
    ),
    task: list[str] = typer.Option(
        ["needles"],
        help="needles, dialogue, novel, essay, ruler, ruler/TASK or a file of yours. Repeat it.",
    ),
    method: list[str] = typer.Option(
        ["all"],
        "--method",
        "--methods",
        help="kvp, kvp:FILE, gate, gate:FILE, a method's name, a method with options "
        "(snapkv:pool=21), or all. Repeat it.",
    ),
    budget: list[str] = typer.Option(
        ALL_BUDGETS, help="Kept: a fraction (0.25 or 25%) or a number of entries (256)."
    ),
    allocator: list[str] = typer.Option(
        ["uniform"],
        "--allocator",
        "--allocators",
        help="How heads share a budget: uniform, pyramid, adakv, model, share (learned), "
        "share:FILE, one with options (pyramid:beta=5), or all. Repeat it.",
    ),
    protocol: str = typer.Option(
        "after", help="The question comes after the eviction, is inside the prefill, or both."
    ),
    count: int = typer.Option(24, min=1, help="Documents of each task."),
    lengths: str = typer.Option("256:2000", help="Shortest and longest context, in tokens."),
    split: str = typer.Option("dev", help="Which texts, words and wordings: dev, test or train."),
    seed: int = typer.Option(0, help="Of the documents and the bootstrap."),
    sinks: int = typer.Option(4, min=0, help="First entries kept by every method."),
    recent: int = typer.Option(16, min=0, help="Last entries kept by every method."),
    reference: str = typer.Option(
        "", help="The method that others are compared with; else the first policy."
    ),
    out: Path = typer.Option(Path("results"), help="Folder for records, tables and curves."),
    records: Path | None = typer.Option(
        None, help="What is in this file is not computed again; else records.jsonl in --out."
    ),
    dtype: str = typer.Option("auto", help="auto, float32, bfloat16 or float16."),
    device: str = typer.Option("auto", help="Where the model runs: auto, cpu, cuda, cuda:1."),
) -> None:
    """Compare eviction methods on a model's answers and on the attention they lose."""
    from python_ref.artifacts import replacing
    from python_ref.data.mixture import documents, parse_sources
    from python_ref.evaluation import (
        Plan,
        allocations,
        contestants,
        evaluate_into,
        parse_budget,
        summarise,
    )
    from python_ref.evaluation.allocation import check_rows, unlike_scores
    from python_ref.evaluation.contestants import check_geometry
    from python_ref.evaluation.curves import draw_curves
    from python_ref.evaluation.tables import as_json, markdown, rich_table
    from python_ref.model_info import inspect_model

    console = Console()
    if protocol not in ("after", "inside", "both"):
        raise ValueError(f"--protocol: got {protocol!r}, expected after, inside or both")
    if split not in ("train", "dev", "test"):
        raise ValueError(f"--split: got {split!r}, expected train, dev or test")
    span = parse_lengths(lengths)
    names = list(parse_sources(task))
    rivals = contestants(list(dict.fromkeys(method)))
    budgets = list(dict.fromkeys(parse_budget(text) for text in budget))
    shared = allocations(allocator)
    protocols = ("after", "inside") if protocol == "both" else (protocol,)
    reference = reference or next((c.name for c in rivals if c.fingerprint), "")
    if reference and reference not in [c.name for c in rivals]:
        raise ValueError(f"--reference: got {reference!r}, expected one of the methods compared")
    path = out / "records.jsonl" if records is None else records
    if split == "test":
        console.print("The test split is for one look, after every choice was made on dev.")

    with console.status(f"loading {model}"):
        network, tokenizer = load_model(model, device=device, dtype=dtype)
        info = inspect_model(network, Path(model).name)
    check_geometry(rivals, info)
    check_rows(shared, info)
    for sentence in unlike_scores([c.name for c in rivals], shared):
        console.print(f"[yellow]note[/yellow]: {escape(sentence)}")
    name = f"{info.name} {info.fingerprint[:8]} {info.dtype}"
    with console.status("writing documents"):
        tasks = {
            one: list(documents(tokenizer, {one: 1.0}, count, lengths=span, split=split, seed=seed))
            for one in names
        }
    plan = Plan(name, rivals, budgets, protocols, sinks, recent, shared)
    out.mkdir(parents=True, exist_ok=True)
    found = evaluate_into(path, network, tokenizer, tasks, plan)
    summaries = summarise(found, reference=reference, seed=seed)
    heading = f"{name}: {split} split, {count} documents a task, {lengths} tokens, seed {seed}"
    for name, text in (
        ("tables.md", markdown(summaries, heading)),
        ("tables.json", as_json(summaries)),
    ):
        with replacing(out / name) as draft:
            draft.write_text(text, encoding="utf-8")
    curves = draw_curves(summaries, out)
    for summary in summaries:
        if summary.primary or summary.metric == "cost":
            console.print(rich_table(summary))
    for file in (path, out / "tables.md", out / "tables.json", *curves):
        console.print(f"wrote {escape(str(file))}")
