"""The `kvp-ext` command line."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import kvp_ext

from ..active import DEFAULT_POLICY
from .calibrate import calibrate
from .eval import evaluate
from .show import show
from .trace import trace
from .train import train_policy
from .train_gate import train_gate

app = typer.Typer(
    help="Learned eviction of KV-cache entries.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"kvp-ext {kvp_ext.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    pass


@app.command()
def backends() -> None:
    """List the backends, and how to get those that are missing."""
    table = Table("backend", "status")
    for name, status in kvp_ext.backends().items():
        table.add_row(name, escape(status))
    console.print(table)


@app.command()
def info(
    policy: str = typer.Argument(DEFAULT_POLICY, help="A shipped policy's name or a policy file."),
) -> None:
    """Show what a policy is, what it was trained on and what it costs."""
    p = kvp_ext.load_policy(policy)
    table = Table("", "", title=p.name or policy, show_header=False)
    heads = p.layers * p.kv_heads
    dims = f"{p.head_dim_k}" if p.head_dim_k == p.head_dim_v else f"{p.head_dim_k}/{p.head_dim_v}"
    matrices = sum(t[0, 0].numel() for n, t in p.folded.tensors.items() if n.endswith("weight"))
    rows = {
        "architecture": f"{p.architecture}, {p.hidden} wide",
        "geometry": f"{p.layers} layers, {p.kv_heads} KV heads, head dim {dims}",
        "longest trained position": f"{p.max_position:,}; later ones are scored as this one",
        "pinned in training": f"{p.sinks} sinks, {p.recent} recent",
        "weights": f"{p.parameters:,} in {heads} heads, {p.packed().nbytes / 1e6:.1f} MB packed",
        "cost": f"{2 * matrices / 1e3:,.1f} kFLOP per token and head",
    }
    told = dict(p.provenance)
    if "shares" in told:
        told["shares"] = f"learned for {', '.join(told['shares'])} kept"
    for key, value in (rows | {k: str(v) for k, v in told.items()}).items():
        table.add_row(key, escape(value))
    console.print(table)


@app.command()
def demo(
    tokens: int = typer.Option(1500, min=256, max=6000, help="Length of the document."),
    policy: str = typer.Option(DEFAULT_POLICY, help="A policy's name or file."),
    seed: int = typer.Option(0, help="Chooses the document and the facts hidden in it."),
    out: Path = typer.Option(Path("demo-out"), help="Folder for the picture."),
) -> None:
    """Evict a real model's cache and show what is kept, what it costs and what is lost."""
    from .demo import run

    run(console, tokens=tokens, policy_name=policy, seed=seed, out=out)


app.command()(trace)
app.command("train")(train_policy)
app.command("train-gate")(train_gate)
app.command()(calibrate)
app.command("eval")(evaluate)
app.command()(show)


def main() -> None:
    """Entry point: errors of the user are one message, not a traceback."""
    try:
        app()
    except (ValueError, FileNotFoundError, ModuleNotFoundError, RuntimeError) as error:
        Console(stderr=True).print(f"[red]kvp-ext:[/red] {escape(str(error))}")
        sys.exit(1)
