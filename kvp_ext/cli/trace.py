"""`kvp-ext trace`: runs a model over documents once and keeps what training needs."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from .loading import load_model, parse_lengths

if TYPE_CHECKING:
    from python_ref.model_info import ModelInfo
    from python_ref.training.traces import TraceOptions

ESTIMATED_FROM = 32


def trace(
    model: str = typer.Option(
        "smollm2", help="A Hugging Face name or folder, or smollm2 for the packaged model."
    ),
    source: list[str] = typer.Option(
        ...,
        metavar="NAME[=WEIGHT]",
        help="Where documents come from: needles, dialogue, novel, essay, ruler, ruler/TASK or a "
        "file of yours. Repeat it to mix.",
    ),
    count: int = typer.Option(200, min=1, help="Documents."),
    lengths: str = typer.Option("256:2000", help="Shortest and longest context, in tokens."),
    split: str = typer.Option("train", help="Which texts, words and wordings: train, dev or test."),
    seed: int = typer.Option(0, help="Of the documents, split points and sampled answers."),
    splits: int = typer.Option(
        6, min=0, help="Split points drawn within running text, beside its end."
    ),
    horizon: int = typer.Option(
        300, min=1, help="Future tokens whose attention counts at a split of running text."
    ),
    store: str = typer.Option(
        "utilities", help="utilities, or queries: from them any other split can be computed."
    ),
    generate: int = typer.Option(
        0, min=0, help="Tokens of an answer by the model itself, as a further future."
    ),
    temperature: float = typer.Option(0.0, min=0.0, help="Of that answer; 0 is greedy."),
    answer_share: float = typer.Option(
        0.6,
        min=0.0,
        max=1.0,
        help="Share of a question's weight that goes to the queries that predict its answer; "
        "0 weighs all queries alike, as the paper does.",
    ),
    dtype: str = typer.Option("auto", help="auto, float32, bfloat16 or float16."),
    device: str = typer.Option("auto", help="Where the model runs: auto, cpu, cuda, cuda:1."),
    out: Path = typer.Option(Path("traces"), help="Folder; what is in it is not traced again."),
    max_disk: float | None = typer.Option(
        None, min=0.0, help="Stop before the folder exceeds so many GB."
    ),
    repair: bool = typer.Option(
        False, "--repair", help="Remove damaged shards and trace their documents again."
    ),
) -> None:
    """Run a model over documents once and keep keys, values and utilities for training."""
    from tqdm import tqdm

    from python_ref.data.mixture import documents, parse_sources
    from python_ref.model_info import inspect_model
    from python_ref.training.collect import collect
    from python_ref.training.trace_store import TraceWriter
    from python_ref.training.traces import TraceOptions

    console = Console()
    options = TraceOptions(splits, horizon, seed, store, generate, temperature, answer_share)
    sources, span = parse_sources(source), parse_lengths(lengths)
    with console.status(f"loading {model}"):
        network, tokenizer = load_model(model, device=device, dtype=dtype)
    info = inspect_model(network, model)
    choice: dict[str, Any] = {"lengths": span, "split": split, "seed": seed}
    stream = documents(tokenizer, sources, count, **choice)
    sample = documents(tokenizer, sources, count, **choice)
    with console.status("writing the first documents"):
        average = describe(console, list(itertools.islice(sample, ESTIMATED_FROM)), info, options)
    corpus = {"sources": sources, "count": count, **choice, "lengths": list(span)}
    limit = None if max_disk is None else int(max_disk * 1e9)
    with TraceWriter(out, info, options, corpus=corpus, repair=repair) as writer:
        free = shutil.disk_usage(out).free
        console.print(
            f"{count} documents: about {size(average * count)}; {size(writer.bytes)} of it are in "
            f"{escape(str(out))}; {size(free)} are free"
        )
        started = time.perf_counter()
        with tqdm(total=count, desc="documents", unit="doc") as bar:

            def show(done: Any, document: Any) -> None:
                bar.update()
                bar.set_postfix_str(f"{size(writer.bytes)}, {done.tokens:,} tokens", refresh=False)

            done = collect(network, stream, writer, max_bytes=limit, progress=show)
        seconds = time.perf_counter() - started
    manifest = writer.manifest
    if done.disk_full:
        console.print(
            f"[yellow]stopped[/yellow]: the next document would have exceeded --max-disk {max_disk}"
        )
    console.print(
        f"traced {done.documents} documents of {done.tokens:,} tokens in {seconds:.0f} s: "
        f"{done.model_tokens / seconds:,.0f} tokens/s with their futures; "
        f"{done.skipped} were there already"
    )
    console.print(
        f"{escape(str(out))}: {len(manifest.documents)} documents, {manifest.tokens:,} tokens, "
        f"{size(manifest.bytes)} in {len(manifest.shards)} shard"
        + "s"
        * (len(manifest.shards) != 1)
    )


def describe(
    console: Console, documents: list[Any], model: ModelInfo, options: TraceOptions
) -> float:
    """Says what a token takes on disk; returns the mean bytes of a document."""
    from python_ref.training.collect import document_bytes
    from python_ref.training.trace_store import bytes_per_token, utility_bytes_per_token

    sizes = [document_bytes(document, model, options) for document in documents]
    tokens = sum(len(document.context) for document in documents)
    queries = bytes_per_token(model, queries=True) - bytes_per_token(model)
    console.print(
        f"{escape(model.name)}: {model.layers} layers, {model.kv_heads} KV heads, "
        f"{model.query_heads} query heads, head dim {model.head_dim_k}, {model.dtype}"
    )
    console.print(
        f"a token takes {bytes_per_token(model):,} bytes for keys and values, "
        f"{utility_bytes_per_token(model):,} for its utility at each split behind it"
        + (f", {queries:,} for its queries" if options.store == "queries" else "")
        + f"; {sum(sizes) / tokens:,.0f} in all"
    )
    return sum(sizes) / len(sizes)


def size(count: float) -> str:
    """A number of bytes for people, in powers of 1000."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            digits = 1 if count < 10 and unit != "bytes" else 0
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
