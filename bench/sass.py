"""What nvcc made of the kernels: registers, stack and instructions, read from the built library.

Uses cuobjdump and nvdisasm, from a CUDA toolkit or the wheels of the same names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# The kernels by what their mangled names contain.
NAMES = {
    "4Bf16ELi256E": "evict, bf16, wide",
    "4Bf16ELi64E": "evict, bf16, narrow",
    "4Fp16ELi256E": "evict, fp16, wide",
    "4Fp16ELi64E": "evict, fp16, narrow",
    "one_block_per_row": "finish",
    "second_launch": "finish, model",
}


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel for one architecture.

    Attributes:
        architecture: such as "sm_90a".
        registers: per thread.
        stack_bytes: per thread, spills among them.
        opcodes: SASS instructions with their modifiers, such as "LDG.E.128", and how many.
    """

    name: str
    architecture: str
    registers: int
    stack_bytes: int
    opcodes: Counter[str]

    def count(self, *parts: str) -> int:
        """Instructions whose dotted name begins with the first part and has all others."""
        first, *others = parts
        return sum(
            n
            for opcode, n in self.opcodes.items()
            if opcode.split(".")[0] == first and set(others) <= set(opcode.split("."))
        )


def read_library(library: Path) -> list[CompiledKernel]:
    """All kernels of a library for all architectures that it holds machine code of.

    Raises:
        FileNotFoundError: no cuobjdump or nvdisasm.
        ValueError: the library holds a kernel that NAMES does not know, or none.
    """
    resources = _resources(_run("--dump-resource-usage", str(library)))
    opcodes = _opcodes(_run("--dump-sass", str(library)))
    if not resources or resources.keys() != opcodes.keys():
        raise ValueError(
            f"{library} has resources of {len(resources)} kernels, SASS of {len(opcodes)}"
        )
    return [
        CompiledKernel(
            _name(mangled), architecture, registers, stack, opcodes[architecture, mangled]
        )
        for (architecture, mangled), (registers, stack) in resources.items()
    ]


def ptx_architectures(library: Path) -> list[str]:
    """For which virtual architectures the library holds PTX, such as ["sm_90"]."""
    return re.findall(r"\.(sm_\w+)\.ptx", _run("--list-ptx", str(library)))


def _name(mangled: str) -> str:
    for part, name in NAMES.items():
        if part in mangled:
            return name
    raise ValueError(f"kernel {mangled} is not one that bench/sass.py knows")


def _resources(text: str) -> dict[tuple[str, str], tuple[int, int]]:
    found = {}
    architecture = mangled = ""
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\w+):", line):
            mangled = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", line):
            found[architecture, mangled] = int(match[1]), int(match[2]) + int(match[3])
    return found


def _opcodes(text: str) -> dict[tuple[str, str], Counter[str]]:
    found: dict[tuple[str, str], Counter[str]] = {}
    architecture = ""
    current: Counter[str] = Counter()
    for line in text.splitlines():
        if match := re.match(r"\s*code for (\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function : (\w+)", line):
            current = found.setdefault((architecture, match[1]), Counter())
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
            current[match[1]] += 1
    return found


def _run(option: str, library: str) -> str:
    folders = [sysconfig.get_path("purelib") + "/nvidia/cu13/bin", "/usr/local/cuda/bin"]
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    tool = shutil.which("cuobjdump", path=path)
    if tool is None:
        raise FileNotFoundError(
            "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm "
            f"(for {sys.executable}), or put a CUDA toolkit's bin folder on PATH"
        )
    done = subprocess.run(
        [tool, option, library],
        env=os.environ | {"PATH": path},  # it calls nvdisasm
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
