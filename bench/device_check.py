"""Everything that only a GPU can tell, in one run: does it build, is it right, how fast is it.

    bench/device_check.sh [--dry-run] [--out FILE] [--steps build,parity,...]

Each step runs in processes of its own under a limit of time, so that a kernel that hangs or faults
costs that step alone. What was found is written to FILE after every step, as JSON; short tables
come last. --dry-run does on this host what needs no GPU: the kernels run on the host layer, the
shapes are small, and the build is only configured. Exit status 0: every step passed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_table import conclusion

ROOT = Path(__file__).resolve().parents[1]
STEP = [sys.executable, str(Path(__file__).with_name("device_step.py"))]
SITE = ROOT / "build" / "device-site"
TOTAL_S = 450  # in all, so that 8 minutes hold it
GRACE_S = 10  # that a step has for ending by itself


@dataclass(frozen=True)
class Step:
    """Something to check, and how long it may take."""

    name: str
    limit_s: int


# The most telling first, should time run out.
STEPS = (
    Step("build", 200),
    Step("parity", 60),
    Step("timing", 100),
    Step("graph", 60),
    Step("memcheck", 60),
    Step("racecheck", 60),
    Step("rivals", 110),
    Step("parity_large", 80),
)


class Report:
    """The JSON file, complete after every change."""

    def __init__(self, file: Path, is_dry: bool) -> None:
        self.file = file
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
        self.file.parent.mkdir(parents=True, exist_ok=True)
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(self.content, indent=1) + "\n")
        draft.replace(self.file)


def run_limited(command: list[str], limit_s: float, **options: Any) -> tuple[int, str]:
    """Exit status and output; 124 if it was stopped, with all that it had started."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group, to stop it as a whole; no session, so that it ends with this one's.
            preexec_fn=os.setpgrp,
            **options,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = 124
            os.killpg(process.pid, signal.SIGKILL)
            # Where even that does not end it, the driver holds it, and the next steps will tell.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        output.seek(0)
        return status, output.read()


# As exceptions, compilers, CMake, the interpreter and compute-sanitizer begin or mark them.
ERROR = re.compile(
    r"^(\w+\.)*\w*(Error|Exception|Mismatch)\b|^CMake Error|^Fatal|"
    r"\berror *: (?!subprocess-exited)|^========= (Invalid|Misaligned|Error|Race|Program hit)"
)


def first_error(status: int, output: str) -> str:
    """How a process failed, and the line that names its first error, or else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    says = next((line for line in lines if ERROR.search(line)), lines[-1] if lines else "")
    if status < 0:
        return f"killed by {signal.Signals(-status).name}; {says}"
    return says


def toolkits(folder: str) -> list[str]:
    """A folder of every CUDA toolkit in its usual place."""
    return [str(path) for path in sorted(Path("/usr/local").glob(f"cuda*/{folder}"))]


def environment(is_dry: bool) -> dict[str, str]:
    """Of the children: the build of this run comes first, except in a dry run."""
    paths = [] if is_dry else [str(SITE)]
    paths += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    tools = [os.environ.get("PATH", os.defpath), *toolkits("bin")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join(tools),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


# ---- steps ---------------------------------------------------------------------------------------

# In a process of its own, so that this one never waits for a driver.
DESCRIBE = """
import json, torch
p = torch.cuda.get_device_properties(0)
print(json.dumps({"gpu": p.name, "capability": [p.major, p.minor], "memory_bytes": p.total_memory,
                  "l2_bytes": p.L2_cache_size, "processors": p.multi_processor_count,
                  "torch": torch.__version__, "cuda": torch.version.cuda}))
"""


def build(is_dry: bool, limit_s: float, report: Report) -> tuple[int, str]:
    """From source, without network, for this GPU alone; in a dry run only as far as CMake goes."""
    env = environment(is_dry)
    if is_dry:
        with tempfile.TemporaryDirectory() as folder:
            command = ["cmake", "-S", str(ROOT), "-B", folder, "-DKVP_CUDA=AUTO"]
            return run_limited(command, limit_s, env=env)
    status, output = run_limited([sys.executable, "-c", DESCRIBE], min(limit_s, 60), env=env)
    if status != 0:
        return status, f"torch finds no GPU\n{output}"
    report.content["machine"] |= json.loads(output.splitlines()[-1])
    shutil.rmtree(SITE, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"),
        *("--no-index", "--no-cache-dir", "--disable-pip-version-check", "--target", str(SITE)),
        *("-C", "cmake.define.KVP_CUDA=ON", "-C", "build-dir=build/device-build"),
        *("-C", "cmake.define.KVP_CUDA_ARCHITECTURES=" + architecture(report), str(ROOT)),
    ]
    return run_limited(command, limit_s, cwd=ROOT, env=env)


def architecture(report: Report) -> str:
    """Of the GPU, as CMake names it."""
    major, minor = report.content["machine"]["capability"]
    return f"{major}{minor}{'a' if major in (9, 10) else ''}-real"


def sanitizer(tool: str, env: dict[str, str]) -> list[str] | None:
    """The command in front of a program, or None where there is no compute-sanitizer."""
    places = [env["PATH"], *toolkits("compute-sanitizer")]
    program = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if program is None:
        return None
    # Our kernels alone: those of torch take long, and are not ours to judge.
    _, usage = run_limited([program, "--help"], 20)
    flag = next((f for f in ("--kernel-regex", "--kernel-name") if f in usage), None)
    ours = [flag, "kns=kvp"] if flag else []
    return [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "5", *ours]


def run_step(step: Step, is_dry: bool, limit_s: float, report: Report) -> bool:
    """Runs one step and reports it."""
    start = time.monotonic()
    if step.name == "build":
        status, output = build(is_dry, limit_s, report)
    else:
        status, output = run_child(step.name, is_dry, limit_s, report)
    seconds = round(time.monotonic() - start, 1)
    lines = [line for line in output.splitlines() if line.strip()]
    says = (first_error(status, output) if status else lines[-1] if lines else "")[:400]
    if status == 124:
        says = f"stopped after {limit_s:.0f} s; {says}"
    skipped = status == 0 and says.startswith("skipped")
    report.step(step.name, passed=status == 0, skipped=skipped, seconds=seconds, says=says)
    if status != 0:
        report.step(step.name, output=output[:4000] + "\n...\n" + output[-4000:])
    return status == 0


def run_child(name: str, is_dry: bool, limit_s: float, report: Report) -> tuple[int, str]:
    """A step that is device_step.py's."""
    env = environment(is_dry)
    part = report.file.with_suffix(f".{name}.json")  # what there is of it if this run is killed
    part.unlink(missing_ok=True)
    command = [*STEP, name, str(part), "--until", str(time.time() + limit_s - GRACE_S)]
    if name in ("memcheck", "racecheck") and not is_dry:
        prefix = sanitizer(name, env)
        if prefix is None:
            return 0, "skipped: no compute-sanitizer"
        # Tensors are then allocations of their own, past whose ends nothing is anyone's.
        env |= {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        command = [*prefix, *command]
    status, output = run_limited([*command, *(["--dry-run"] if is_dry else [])], limit_s, env=env)
    if part.exists():
        report.step(name, found=json.loads(part.read_text()))
        part.unlink()
    if "Device not supported" in output:
        return 0, "skipped: compute-sanitizer does not support this device"
    return status, output


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
        found = report.content["steps"][step.name]
        if not found["passed"]:
            print(f"  FAILED: {found['says']}", flush=True)
    return passed


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true")
    folder = Path(os.environ.get("OUT", ROOT / "build"))
    parser.add_argument("--out", type=Path, default=folder / "device_check.json")
    parser.add_argument("--steps", default=",".join(step.name for step in STEPS))
    options = parser.parse_args(arguments)
    chosen = options.steps.split(",")
    if unknown := set(chosen) - {step.name for step in STEPS}:
        parser.error(f"--steps: {sorted(unknown)}, expected {[step.name for step in STEPS]}")
    report = Report(options.out, options.dry_run)
    report.write()
    passed = check([s for s in STEPS if s.name in chosen], options.dry_run, report)
    report.content["passed"] = passed
    report.write()
    print("\n".join(["", *conclusion(report.content), "", f"wrote {options.out}"]))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
