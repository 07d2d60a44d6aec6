"""`kvp-ext calibrate`: scores of all heads on one scale, and each head's share of a budget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import kvp_ext

GEOMETRY = ("layers", "kv_heads", "head_dim_k", "head_dim_v")


def calibrate(
    policy: str = typer.Argument(..., help="A shipped policy's name or a policy file."),
    traces: list[Path] = typer.Option(
        ..., help="A folder made by `kvp-ext trace`; several are joined. A few documents suffice."
    ),
    out: Path = typer.Option(..., help="The policy file to write, *.safetensors."),
) -> None:
    """Put a policy's scores on one scale, so that heads and layers may compete for a budget.

    The policy that is written ranks each head's entries as before, and carries the shares of a
    budget that its heads should get (`kvp-ext eval --allocator share:FILE`).
    """
    from python_ref.training.calibration import calibrate
    from python_ref.training.shares import learn_shares
    from python_ref.training.trace_pool import TracePool

    console = Console()
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out: the folder {out.parent} does not exist")
    given = kvp_ext.load_policy(policy)
    pool = TracePool(traces)
    model = pool.readers[0].manifest.model
    for name in GEOMETRY:
        if getattr(given, name) != getattr(model, name):
            raise ValueError(
                f"policy: {policy!r} is for {name} {getattr(given, name)}, expected "
                f"{getattr(model, name)} as in the traces of {model.name}"
            )
    sinks, recent = given.sinks, given.recent
    with console.status("fitting"):
        folded, result = calibrate(given.folded, pool, sinks=sinks, recent=recent)
    with console.status("sharing"):
        shares = learn_shares(given.folded, pool, sinks=sinks, recent=recent)
    calibration = {
        "of": given.name or policy,
        "before": _rounded(asdict(result.before)),
        "after": _rounded(asdict(result.after)),
        "flat_heads": result.flat,
        "traces": pool.summary(),
    }
    provenance = given.provenance | {"calibration": calibration, "shares": shares}
    kvp_ext.Policy(folded, sinks=sinks, recent=recent, name=out.stem, provenance=provenance).save(
        out
    )
    table = Table("on the traces", "before", "after", title="scores against the log-utility")
    for label, name in (
        ("R², all heads", "r2"),
        ("R², within heads", "r2_within"),
        ("rank correlation, all heads together", "rank_all"),
        ("rank correlation, within heads", "rank_within"),
    ):
        values = (f"{getattr(one, name):.3f}" for one in (result.before, result.after))
        table.add_row(label, *values)
    console.print(table)
    console.print(
        f"{result.flat} of {given.layers * given.kv_heads} heads have scores that tell next to "
        "nothing of the utility"
    )
    for ratio, rows in shares.items():
        every = sorted(share for row in rows for share in row)
        console.print(
            f"shares at {float(ratio):.4g} kept: {every[0]:.2f} to {every[-1]:.2f} of the average, "
            f"median {every[len(every) // 2]:.2f}"
        )
    console.print(f"wrote {escape(str(out))}")


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}
