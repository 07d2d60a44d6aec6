"""One step of device_check.py, in this process.

    device_step.py STEP FILE [--dry-run] [--until TIME]

What is found goes to FILE as JSON while the step runs; the last line printed sums it up.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

from device_cases import FAMILIES, Case
from device_graph import run_graph
from device_parity import mixed, run_parity
from device_rivals import run_rivals
from device_target import Target, target_named
from device_timing import run_timing

DRY_SHARE = {"parity": 5, "parity_large": 40, "memcheck": 30, "racecheck": 30}


def parity_cases(step: str, is_dry: bool) -> list[Case]:
    """Small ones are all kinds in seconds; large ones are rows of many tiles and blocks."""
    is_small = is_dry or step != "parity_large"
    families = (family(is_small) for family in FAMILIES.values())
    every = DRY_SHARE[step] if is_dry else 1
    return list(itertools.islice(itertools.chain.from_iterable(families), 0, None, every))


def run(step: str, target: Target, until: float, file: Path) -> tuple[bool, str]:
    """Whether it passed, and a sentence."""

    def record(found: dict[str, Any]) -> None:
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(found))
        draft.replace(file)

    if step == "timing":
        return run_timing(target, record, until)
    if step == "rivals":
        return run_rivals(target, record, until)
    if step == "graph":
        return run_graph(target, record)
    if step in ("memcheck", "racecheck"):
        target.backends = target.backends[:1]
    return run_parity(mixed(parity_cases(step, target.is_dry)), target, record, until)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=["timing", "rivals", "graph", *DRY_SHARE])
    parser.add_argument("file", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds since the epoch")
    options = parser.parse_args()
    target = target_named("host" if options.dry_run else "cuda")
    passed, says = run(options.step, target, options.until, options.file)
    print(says)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
