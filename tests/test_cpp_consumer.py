"""A C++ program builds against the installed package and gets right results, without Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvp_ext

SOURCES = Path(__file__).parent / "cpp"
PROGRAMS = ["evict_small_cache", "random_shapes", "header_is_c"]


def tool(name):
    """A build tool of this environment, whether or not it is activated."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


@pytest.fixture(scope="module")
def build_dir(tmp_path_factory):
    build = tmp_path_factory.mktemp("consumer")
    configure = [
        tool("cmake"),
        "-S",
        SOURCES,
        "-B",
        build,
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DCMAKE_PREFIX_PATH={kvp_ext.cmake_prefix()}",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    for command in (configure, [tool("cmake"), "--build", build, "-j2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


@pytest.mark.parametrize("program", PROGRAMS)
def test_consumer(build_dir, program):
    done = subprocess.run([build_dir / program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
