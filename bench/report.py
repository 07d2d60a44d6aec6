"""`make bench`: runs the microbenchmarks and prints them as tables, then the speed ratios.

python bench/report.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import speed
import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


def methods_table(results: list[dict], geometry: str) -> Table:
    """Median time of every method and length, with its ratio to the small policy."""
    cells: dict[tuple[str, int], float] = {}
    for result in results:
        if result["extra_info"]["geometry"] == geometry:
            key = (result["params"]["method"], result["extra_info"]["tokens"])
            cells[key] = statistics.median(result["stats"]["data"]) * 1e3
    lengths = sorted({tokens for _, tokens in cells})
    names = list(dict.fromkeys(name for name, _ in cells))
    table = Table(title=f"{geometry}: ms for all layers and heads, 25% kept (ratio to kvp small)")
    table.add_column("method")
    for tokens in lengths:
        table.add_column(f"{tokens // 1024}k", justify="right")
    for name in names:
        row = [
            f"{cells[name, t]:.1f} ({cells[name, t] / cells['kvp small', t]:.2f}x)"
            if (name, t) in cells
            else ""
            for t in lengths
        ]
        table.add_row(name, *row)
    return table


def main(quick: bool = False, out: Path | None = None) -> None:
    """`--quick` leaves out 16k and 32k tokens; `--out` keeps the JSON."""
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "methods.json"
        command = [sys.executable, "-m", "pytest", str(HERE / "test_methods.py"), "-q"]
        command += ["-c", str(HERE / "pytest.ini"), f"--benchmark-json={path}"]
        if quick:
            command += ["-k", "1024 or 4096"]
        subprocess.run(command, check=True)
        report = json.loads(path.read_text())
    geometries = dict.fromkeys(r["extra_info"]["geometry"] for r in report["benchmarks"])
    for geometry in geometries:
        console.print(methods_table(report["benchmarks"], geometry))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "methods.json").write_text(json.dumps(report, indent=1))
    speed.main(out=out / "speed.json" if out is not None else None)


if __name__ == "__main__":
    typer.run(main)
