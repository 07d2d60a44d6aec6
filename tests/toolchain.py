"""Builds C++ programs with the tools of this environment."""

import shutil
import subprocess
import sys
from pathlib import Path


def tool(name):
    """A build tool of this environment, whether or not it is activated."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def build(sources, folder, *options, target="all"):
    """Configures a CMake project with some options and builds a target of it."""
    configure = [tool("cmake"), "-S", sources, "-B", folder, "-G", "Ninja", *options]
    configure.append(f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    compiling = [tool("cmake"), "--build", folder, "--target", target, "-j2"]
    for command in (configure, compiling):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
