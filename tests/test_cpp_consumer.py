"""A C++ program builds against the installed package and gets right results, without Python."""

import subprocess
from pathlib import Path

import pytest
from toolchain import build

import kvp_ext

SOURCES = Path(__file__).parent / "cpp"
PROGRAMS = ["evict_small_cache", "random_shapes", "header_is_c"]


@pytest.fixture(scope="module")
def build_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("consumer")
    prefix = f"-DCMAKE_PREFIX_PATH={kvp_ext.cmake_prefix()}"
    build(SOURCES, folder, prefix, "-DCMAKE_BUILD_TYPE=Release")
    return folder


@pytest.mark.parametrize("program", PROGRAMS)
def test_consumer(build_dir, program):
    done = subprocess.run([build_dir / program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
