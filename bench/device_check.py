"""Everything that only a GPU can tell, in one run: build, parity, graphs, sanitizers, times.

    bench/device_check.sh [--dry-run] [--out FILE] [--steps build,parity,...]

Each step runs in a process of its own under a limit of time, so that a kernel that hangs or faults
costs that step alone. What was found is written to FILE after every step, as JSON; a short table
comes last. --dry-run does on this host what needs no GPU: the kernels run on the host layer, the
shapes are small, and the build is only configured. Exit status 0: every step passed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "device-site"
TOTAL_S = 460  # in all, so that 8 minutes hold it


@dataclass(frozen=True)
class Step:
    """Something to check, and how long it may take."""

    name: str
    limit_s: int
    is_child: bool = True  # runs `device_check.py --run NAME`


# The most telling first, should time run out.
STEPS = (
    Step("build", 200, is_child=False),
    Step("parity", 120),
    Step("graph", 60),
    Step("timing", 150),
    Step("memcheck", 60, is_child=False),
    Step("racecheck", 60, is_child=False),
)


class Report:
    """The JSON file, complete after every change."""

    def __init__(self, file: Path, is_dry: bool) -> None:
        self._file = file
        self.content: dict[str, Any] = {
            "dry_run": is_dry,
            "machine": {"platform": platform.platform(), "python": platform.python_version()},
            "steps": {},
        }

    def step(self, name: str, **found: Any) -> None:
        """Adds to what is known of a step."""
        self.content["steps"].setdefault(name, {}).update(found)
        self.write()

    def write(self) -> None:
        """Replaces the file as a whole."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".part")
        draft.write_text(json.dumps(self.content, indent=1) + "\n")
        draft.replace(self._file)


# ---- in the parent -------------------------------------------------------------------------------


def run_limited(command: list[str], limit_s: float, **options: Any) -> tuple[int, str]:
    """Exit status and output; 124 if it was stopped, with all that it had started."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **options
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = 124
        output.seek(0)
        return status, output.read()


def environment(is_dry: bool) -> dict[str, str]:
    """Of the children: the build of this run comes first, except in a dry run."""
    paths = [] if is_dry else [str(SITE)]
    paths += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def architecture() -> str:
    """Of the GPU, as CMake names it."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    feature = "a" if (major, minor) in ((9, 0), (10, 0)) else ""
    return f"{major}{minor}{feature}-real"


def build(is_dry: bool, limit_s: float) -> tuple[int, str]:
    """From source, without network, for this GPU alone; in a dry run only as far as CMake goes."""
    if is_dry:
        with tempfile.TemporaryDirectory() as folder:
            command = ["cmake", "-S", str(ROOT), "-B", folder, "-DKVP_CUDA=AUTO"]
            return run_limited(command, limit_s)
    try:
        of_device = architecture()
    except Exception as error:
        return 1, f"no GPU: {error}"
    shutil.rmtree(SITE, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"),
        *("--no-index", "--quiet", "--target", str(SITE)),
        *("-C", "cmake.define.KVP_CUDA=ON", "-C", "build-dir=build/device-build"),
        *("-C", f"cmake.define.KVP_CUDA_ARCHITECTURES={of_device}", str(ROOT)),
    ]
    return run_limited(command, limit_s, cwd=ROOT)


def sanitize(tool: str, is_dry: bool, limit_s: float) -> tuple[int, str]:
    """A few cases of each family under a tool of compute-sanitizer."""
    command = [sys.executable, str(Path(__file__).resolve()), "--run", "few", "--out", os.devnull]
    if is_dry:
        return run_limited([*command, "--dry-run"], limit_s, env=environment(is_dry))
    places = [
        os.environ.get("PATH", ""),
        "/usr/local/cuda/bin",
        "/usr/local/cuda/compute-sanitizer",
    ]
    program = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if program is None:
        return 0, "skipped: no compute-sanitizer"
    status, output = run_limited(
        [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "5", *command],
        limit_s,
        env=environment(is_dry),
    )
    if "Device not supported" in output:
        return 0, "skipped: compute-sanitizer says that the device is not supported"
    return status, output


def run_step(step: Step, is_dry: bool, limit_s: float, report: Report) -> bool:
    """Runs one step and reports it."""
    start = time.monotonic()
    if step.name == "build":
        status, output = build(is_dry, limit_s)
    elif not step.is_child:
        status, output = sanitize(step.name, is_dry, limit_s)
    else:
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "part.json"
            command = [sys.executable, str(Path(__file__).resolve()), "--run", step.name]
            command += ["--out", str(part), *(["--dry-run"] if is_dry else [])]
            status, output = run_limited(command, limit_s, env=environment(is_dry))
            if part.exists():
                report.step(step.name, found=json.loads(part.read_text()))
    seconds = round(time.monotonic() - start, 1)
    lines = [line for line in output.splitlines() if line.strip()]
    says = lines[-1][:300] if lines else ""
    if status == 124:
        says = f"stopped after {limit_s:.0f} s; {says}"
    skipped = says.startswith("skipped")
    report.step(step.name, passed=status == 0, skipped=skipped, seconds=seconds, says=says)
    if status != 0:
        report.step(step.name, output=output[-4000:])
    return status == 0


def check(steps: list[Step], is_dry: bool, report: Report) -> bool:
    """Runs the steps one after the other; those that time does not reach fail."""
    end = time.monotonic() + TOTAL_S
    passed = True
    for step in steps:
        left = end - time.monotonic()
        if left < 5:
            report.step(step.name, passed=False, skipped=True, seconds=0.0, says="no time left")
            passed = False
            continue
        print(f"{step.name} ...", flush=True)
        passed &= run_step(step, is_dry, min(step.limit_s, left), report)
    return passed


def conclusion(content: dict[str, Any]) -> list[str]:
    """The short table."""
    lines = []
    for name, step in content["steps"].items():
        state = "skipped" if step["skipped"] else "passed" if step["passed"] else "FAILED"
        lines.append(f"{name:10}{state:8}{step['seconds']:>7.1f} s  {step['says'][:120]}")
    timing = content["steps"].get("timing", {}).get("found")
    if timing:
        sys.path.insert(0, str(ROOT / "bench"))
        from device_timing import table

        lines += ["", *table(timing)]
    return lines


# ---- in a child ----------------------------------------------------------------------------------


def run_child(name: str, is_dry: bool, out: Path) -> int:
    """One step, in this process."""
    import itertools

    from device_cases import FAMILIES
    from device_graph import run_graph
    from device_parity import run_parity
    from device_target import target_named
    from device_timing import run_timing

    target = target_named("host" if is_dry else "cuda")

    def record(found: dict[str, Any]) -> None:
        if str(out) != os.devnull:
            out.write_text(json.dumps(found))

    def families(every: int) -> Any:
        chains = (family(is_dry or every > 1) for family in FAMILIES.values())
        return itertools.islice(itertools.chain.from_iterable(chains), 0, None, every)

    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        "parity": lambda: run_parity(families(5 if is_dry else 1), target, record),
        "few": lambda: run_parity(families(60), target, record),
        "graph": lambda: run_graph(target, record),
        "timing": lambda: run_timing(target, record),
    }
    passed, says = checks[name]()
    print(says)
    return 0 if passed else 1


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true")
    folder = Path(os.environ.get("OUT", ROOT / "build"))
    parser.add_argument("--out", type=Path, default=folder / "device_check.json")
    parser.add_argument("--steps", default=",".join(step.name for step in STEPS))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run:
        return run_child(options.run, options.dry_run, options.out)
    chosen = options.steps.split(",")
    if unknown := set(chosen) - {step.name for step in STEPS}:
        parser.error(f"--steps: {sorted(unknown)}, expected {[step.name for step in STEPS]}")
    report = Report(options.out, options.dry_run)
    passed = check([s for s in STEPS if s.name in chosen], options.dry_run, report)
    report.content["passed"] = passed
    report.write()
    print("\n".join(["", *conclusion(report.content), "", f"wrote {options.out}"]))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
