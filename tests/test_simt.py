"""The host layer that runs CUDA kernels: its own tests, and bugs planted for it to notice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toolchain import build

ROOT = Path(__file__).parents[1]
TESTS = [
    "atomics",
    "block",
    "cp_async",
    "errors",
    "fiber",
    "half",
    "launch",
    "mma",
    "warp",
    "words",
]
# What is said of each planted bug, in one schedule at least.
NOTICED = {
    "missing_barrier": "wrong result",
    "missing_wait": "wrong result: -nan",
    "shared_overrun": "shared memory overrun: byte 0 past the end of a piece of 256",
    "early_store": "wrong result",
    "divergent_barrier": "divergent barriers: __syncthreads",
    "exited_lane": "exited lane in a mask",
    "deadlock": "deadlock: no thread of the block can go on",
}
# Races that change no result on a host with strong memory order; TSan sees them.
RACES = {
    "ticket_without_release": "reduce_grid<true>",
    "missing_barrier": "reduce<true>",
    "early_store": "compact<true>",
}

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or not sys.platform.startswith("linux"), reason="no C++ compiler"
)


def built(folder, target, *options):
    """The programs of tests/cpp/simt, without kernels and library."""
    options += ("-DKVP_TESTS=ON", "-DKVP_SIMT=ON", "-DKVP_CUDA=OFF")
    options += ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1")
    build(ROOT, folder, *options, target=target)
    return folder / "tests" / "cpp" / "simt"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return built(tmp_path_factory.mktemp("simt"), "simt_tests")


@pytest.fixture(scope="module")
def programs_with_tsan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simt-tsan")
    return built(folder, "planted_bugs", "-DKVP_SANITIZE=thread")


def run(*command, **environment):
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("name", [*TESTS, "fiber_ucontext"])
def test_runtime(programs, name):
    done = run(programs / f"{name}_test")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_test_and_every_bug_is_here():
    sources = {p.stem for p in (ROOT / "tests" / "cpp" / "simt").glob("*_test.cpp")}
    assert sources == {f"{name}_test" for name in TESTS}
    text = (ROOT / "tests" / "cpp" / "simt" / "planted_bugs.cpp").read_text()
    listed = text[text.index("const Case kCases[]") :].split("};")[0].count("<true>")
    assert listed == len(NOTICED.keys() | RACES.keys())


@pytest.mark.parametrize("bug", NOTICED)
def test_a_planted_bug_is_noticed(programs, bug):
    done = run(programs / "planted_bugs", bug)
    assert done.returncode == 1, done.stdout + done.stderr
    assert NOTICED[bug] in done.stdout


@pytest.mark.parametrize("bug", sorted(NOTICED.keys() | RACES.keys()))
def test_the_right_form_is_silent(programs, bug):
    done = run(programs / "planted_bugs", bug, "fixed")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("bug", RACES)
def test_tsan_sees_a_race_between_threads_of_a_kernel(programs_with_tsan, bug):
    done = run(programs_with_tsan / "planted_bugs", bug, TSAN_OPTIONS="halt_on_error=1")
    assert done.returncode not in (0, 1), done.stdout + done.stderr
    assert "data race" in done.stderr
    assert RACES[bug] in done.stderr
    fixed = run(programs_with_tsan / "planted_bugs", bug, "fixed", TSAN_OPTIONS="halt_on_error=1")
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr
