"""`kvp-ext show`: a page that shows which tokens of a text each method keeps."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from .loading import load_model

METHODS = ["kvp", "snapkv", "tova", "h2o", "keydiff", "streaming_llm"]
DEFAULT_TASK = "needles"


def show(
    model: str = typer.Option(
        "smollm2", help="A Hugging Face name or folder, or smollm2 for the packaged model."
    ),
    task: str | None = typer.Option(
        None,
        help=f"{DEFAULT_TASK}, dialogue, novel, essay, ruler/TASK or a file of yours.",
    ),
    text: Path | None = typer.Option(None, help="Show the beginning of this text file instead."),
    question: str | None = typer.Option(
        None, help="Asked after --text; without a question the text goes on."
    ),
    answer: str | None = typer.Option(None, help="The question's answer."),
    method: list[str] = typer.Option(
        METHODS, help="kvp, kvp:FILE, a method's name, a method with options, or all."
    ),
    tokens: int = typer.Option(500, min=32, help="Longest context, in tokens."),
    split: str = typer.Option("dev", help="Which texts, words and wordings: dev, test or train."),
    seed: int = typer.Option(0, help="Chooses the task's document."),
    sinks: int = typer.Option(4, min=0, help="First entries kept by every method."),
    recent: int = typer.Option(16, min=0, help="Last entries kept by every method."),
    dtype: str = typer.Option("auto", help="auto, float32, bfloat16 or float16."),
    device: str = typer.Option("auto", help="Where the model runs: auto, cpu, cuda, cuda:1."),
    out: Path = typer.Option(Path("page.html"), help="The page."),
    open_page: bool = typer.Option(False, "--open", help="Open the page in a browser."),
) -> None:
    """Write a page that shows which tokens each method keeps, and what that costs."""
    from python_ref.artifacts import replacing
    from python_ref.data.mixture import documents, parse_sources
    from python_ref.evaluation import contestants
    from python_ref.evaluation.contestants import check_geometry
    from python_ref.model_info import inspect_model
    from python_ref.show import build_page
    from python_ref.show.document import show_document, text_document

    console = Console()
    if text is None and (question is not None or answer is not None):
        raise ValueError("--question, --answer: got no --text, expected the text they are about")
    if text is not None and task is not None:
        raise ValueError(f"--text: got {text} beside --task {task}, expected one of them")
    if out.is_dir():
        raise ValueError(f"--out: got {out}, a folder, expected a file")
    sources = parse_sources([task or DEFAULT_TASK])
    content = None if text is None else _read(text)
    # The oracle is on every page, as "future utility".
    names = [name for name in dict.fromkeys(method) if name != "oracle"]
    rivals = [r for r in contestants(names) if r.name != "oracle"]

    with console.status(f"loading {model}"):
        network, tokenizer = load_model(model, device=device, dtype=dtype)
        info = inspect_model(network, Path(model).name)
    check_geometry(rivals, info)
    if text is not None and content is not None:
        title = text.name
        document = text_document(tokenizer, content, tokens, question, answer)
        if answer is not None and not document.marked:
            console.print(f"The text's first {len(document.context)} tokens lack the answer.")
    else:
        title = f"{task or DEFAULT_TASK}, {split} split, seed {seed}"
        span = (tokens, tokens)
        document = next(documents(tokenizer, sources, 1, lengths=span, split=split, seed=seed))
    with console.status(f"reading {len(document.context)} tokens"):
        data = show_document(
            network,
            tokenizer,
            document,
            rivals,
            title=title,
            model_name=info.name,
            sinks=sinks,
            recent=recent,
        )
    page = build_page(data)
    with replacing(out) as draft:
        draft.write_text(page, encoding="utf-8")
    heads = info.layers * info.kv_heads
    console.print(
        f"wrote {escape(str(out))}: {len(document.context)} tokens, {heads} heads, "
        f"{len(rivals)} methods and the ideal, {len(page.encode()) / 1e6:.1f} MB"
    )
    if open_page:
        webbrowser.open(out.resolve().as_uri())


def _read(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"--text: got {path}, expected a file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--text: got {path}, expected UTF-8 text ({error})") from None
