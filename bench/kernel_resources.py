"""docs/kernel_resources.md: what the kernels take of a GPU, and the gates that a build must pass.

    python bench/kernel_resources.py build/cuda [--check]

The folder is that of a CMake build with KVP_CUDA=ON and the target cuda_plan. Fails if a kernel
spills, multiplies without tensor cores, moves cache entries by less than 16 bytes where it could,
or reads memory that it also writes through the read-only cache. With --check the page is compared
instead of written; another compiler's figures may differ.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_formulas import Cost, eviction_cost, macs_per_entry
from sass import CompiledKernel, ptx_architectures, read_library

import kvp_ext
from kvp_ext.packing import shape_of

PAGE = Path(__file__).parents[1] / "docs" / "kernel_resources.md"
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
PTX = "sm_90"
THREADS = 256
WARP_ENTRIES = {"narrow": 16, "wide": 32}  # that share one read of a weight
TILE_ENTRIES = 128


@dataclass(frozen=True)
class Architecture:
    """What a multiprocessor has, from the CUDA programming guide's table of capabilities."""

    shared_kb: int  # for all blocks
    block_kb: int  # for one
    warps: int
    registers: int = 65536


LIMITS = {
    "sm_80": Architecture(164, 163, 64),
    "sm_86": Architecture(100, 99, 48),
    "sm_89": Architecture(100, 99, 48),
    "sm_90a": Architecture(228, 227, 64),
    "sm_100a": Architecture(228, 227, 64),
    "sm_120": Architecture(100, 99, 48),
}


@dataclass(frozen=True)
class Gpu:
    """A device, with the ceilings that its times are computed from."""

    name: str
    architecture: str
    processors: int
    ghz: float
    copy_gb_s: float
    matmul_tflop_s: float
    mma_share: float  # of that, what mma.sync reaches
    source: str


GPUS = (
    Gpu("H200", "sm_90a", 132, 1.98, 4300, 790, 0.63,
        "copy and matmul measured; the vendor's boost clock; published microbenchmarks find 63% of "
        "the matmul ceiling for mma.sync on this architecture"),
    Gpu("A100", "sm_80", 108, 1.41, 2039, 312, 1.0,
        "the vendor's figures for the 80 GB SXM version"),
)  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """An eviction of a bf16 cache that keeps a quarter of its entries."""

    name: str
    architecture: str  # of the policy
    layers: int
    heads: int
    slots: int
    head_dim: int = 128

    def policy(self) -> kvp_ext.Policy:
        """One head of it: all are alike."""
        return kvp_ext.Policy.random(
            layers=1, kv_heads=1, head_dim=self.head_dim, architecture=self.architecture
        )


WORKLOADS = (
    Workload("the paper's agent, 28 x 4 heads, 10,000 tokens", "paper", 28, 4, 10_000),
    Workload("a 64-wide policy, 32 x 8 heads, 32,768 tokens", "small", 32, 8, 32_768),
)

INTRODUCTION = """\
# What the kernels take of a GPU

Made by `make cuda`, from the library that nvcc {compiler} built. The same command is a gate: it
fails if a register is spilled, a scoring kernel has no tensor-core instruction, a kernel that
compacts has no load or store of 16 bytes, or any kernel reads through the read-only cache (memory
that is read here is also written). The library also holds PTX for {ptx}.

"Narrow" policies are up to 64 wide, "wide" ones up to 256. bf16 kernels also score fp32 caches.
Registers are per thread and a block has 256; shared memory is that of a block for heads of 128
channels and the policy that `Policy.random` makes: the small one (narrow) and the paper's (wide).
HMMA counts the tensor-core instructions of the program, not those executed.
"""

COMPUTED = """\
## Computed times

Nothing here is measured: these are the times that each resource alone would need, in ms, for caches
in bf16 of which a quarter is kept. The floor is what no implementation can beat on the same
ceilings: every K and V read once, the survivors that move read and written again, the policy's
products at the matmul ceiling. A kernel is at best as fast as its slowest line; blocks that compact
run beside blocks that score, so the lines overlap.

- Weights from L2 names the traffic, and the rate that hides it behind the tensor cores.
- Weights from shared memory: 128 bytes per clock and multiprocessor. One read serves the {narrow}
  entries of a warp (narrow), or the {wide} of a pair of warps (wide).
- Moving survivors supposes that every one moves: an identity prefix is skipped.
"""


def gate(kernels: list[CompiledKernel], ptx: list[str]) -> Iterator[str]:
    """What is wrong with a build, as sentences."""
    built = {(k.name, k.architecture) for k in kernels}
    for name in {k.name for k in kernels}:
        for architecture in ARCHITECTURES:
            if (name, architecture) not in built:
                yield f"{name} is not built for {architecture}"
    if PTX not in ptx:
        yield f"no PTX for {PTX}"
    for k in kernels:
        where = f"{k.name} for {k.architecture}"
        if k.stack_bytes or k.count("LDL") or k.count("STL"):
            yield f"{where} uses local memory ({k.stack_bytes} bytes of stack)"
        if not k.count("LDG", "128") or not k.count("STG", "128"):
            yield f"{where} moves no 16 bytes at a time"
        if k.count("LDG", "CONSTANT"):
            yield f"{where} reads through the read-only cache"
        if k.name.startswith("evict"):
            if not k.count("LDGSTS", "128"):
                yield f"{where} copies no weights asynchronously"
            n_bf16, n_all = k.count("HMMA", "16816", "BF16"), k.count("HMMA", "16816")
            if n_all == 0 or n_bf16 != (n_all if "bf16" in k.name else 0):
                yield f"{where} has {n_all} tensor-core products, {n_bf16} of bf16"


class Planner:
    """Asks csrc/cuda/plan.cpp how it would launch."""

    def __init__(self, tool: Path) -> None:
        self._tool = tool

    def plan(self, w: Workload, architecture: str, processors: int) -> dict[str, int]:
        """As bench/cuda_plan.cpp prints it."""
        shape = shape_of(w.policy().folded)
        number = int(re.sub(r"\D", "", architecture))
        block_bytes = LIMITS[architecture].block_kb * 1024
        numbers = [processors, block_bytes, number, w.layers, w.heads, w.head_dim]
        numbers += [shape.hidden, shape.position_dim, shape.flags, w.slots]
        command = [str(self._tool), *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)


def blocks_per_processor(kernel: CompiledKernel, shared_bytes: int) -> int:
    """How many blocks of a kernel a multiprocessor holds at a time."""
    limits = LIMITS[kernel.architecture]
    registers = -(-kernel.registers // 8) * 8 * THREADS
    reserved = 1024  # of shared memory, by the system for each block
    return min(
        limits.registers // registers,
        limits.shared_kb * 1024 // (shared_bytes + reserved),
        limits.warps * 32 // THREADS,
    )


def width(kernel: CompiledKernel) -> str:
    """The policies that a kernel is for."""
    return "wide" if "wide" in kernel.name else "narrow"


def resource_table(kernels: list[CompiledKernel], planner: Planner) -> list[str]:
    """By kernel and architecture."""
    lines = [
        "| kernel | architecture | registers | spilled | shared memory, KB | blocks per "
        "multiprocessor | warps of the most | HMMA | 16-byte loads, stores |",
        "|---" * 9 + "|",
    ]
    order = {name: i for i, name in enumerate(ARCHITECTURES)}
    for k in sorted(kernels, key=lambda k: (k.name, order[k.architecture])):
        shared = 8192 + 48  # finish: bins and the sums of a block
        if k.name.startswith("evict"):
            workload = next(
                w
                for w in WORKLOADS
                if w.architecture == {"wide": "paper", "narrow": "small"}[width(k)]
            )
            shared = planner.plan(workload, k.architecture, 108)["shared_bytes"]
        blocks = blocks_per_processor(k, shared)
        share = blocks * THREADS / 32 / LIMITS[k.architecture].warps
        lines.append(
            f"| {k.name} | {k.architecture} | {k.registers} | {k.stack_bytes} | "
            f"{shared / 1024:.1f} | {blocks} | {share:.0%} | {k.count('HMMA') or ''} | "
            f"{k.count('LDG', '128')}, {k.count('STG', '128')} |"
        )
    return lines


def phase_table(w: Workload, gpu: Gpu, planner: Planner) -> list[str]:
    """One workload on one device."""
    plan = planner.plan(w, gpu.architecture, gpu.processors)
    policy = w.policy()
    rows = w.layers * w.heads
    entries = rows * w.slots
    kept = rows * (w.slots // 4)
    sizes = {"channels": 2 * w.head_dim, "element_bytes": 2}
    macs = macs_per_entry(policy.folded.tensors)
    whole = eviction_cost(scored=entries, moved=kept, macs=macs, **sizes)
    reading = eviction_cost(scored=entries, moved=0, macs=0, **sizes)
    moving = eviction_cost(scored=0, moved=kept, macs=0, **sizes)

    weights = plan["stages"] * plan["stage_bytes"]
    products = Cost(bytes=0, flops=weights * entries)  # 2 bytes and 2 FLOPs a weight, padding too
    ceilings = gpu.copy_gb_s, gpu.matmul_tflop_s * gpu.mma_share
    is_wide = plan["hidden"] > 64
    chunks = rows * -(-w.slots // plan["chunk_slots"])
    tiles = rows * -(-w.slots // TILE_ENTRIES)
    from_l2 = weights * (tiles if is_wide else chunks)
    from_shared = weights * entries / WARP_ENTRIES["wide" if is_wide else "narrow"]
    shared_ms = from_shared / (128 * gpu.processors * gpu.ghz * 1e9) * 1e3
    products_ms = products.floor_ms(*ceilings)
    return [
        f"### {w.name[0].upper()}{w.name[1:]}, on an {gpu.name}",
        "",
        f"Ceilings: {gpu.copy_gb_s / 1000:.2f} TB/s, {gpu.matmul_tflop_s} TFLOP/s ({gpu.source}). "
        f"{plan['blocks']:,} blocks of up to {plan['chunk_slots']} slots, "
        f"{plan['workspace_bytes'] / 1e6:.1f} MB of workspace.",
        "",
        "| | ms |",
        "|---|---|",
        f"| floor ({whole.bytes / 1e9:.2f} GB, {whole.flops / 1e12:.2f} TFLOP) | "
        f"{whole.floor_ms(gpu.copy_gb_s, gpu.matmul_tflop_s):.2f} |",
        f"| score: read K and V ({reading.bytes / 1e9:.2f} GB) | "
        f"{reading.floor_ms(*ceilings):.2f} |",
        f"| score: products by mma.sync, padding included ({products.flops / 1e12:.2f} TFLOP) | "
        f"{products_ms:.2f} |",
        f"| score: weights from L2 ({from_l2 / 1e9:.2f} GB) | hidden at "
        f"{from_l2 / products_ms / 1e9:.1f} TB/s |",
        f"| score: weights from shared memory ({from_shared / 1e9:.0f} GB) | {shared_ms:.2f} |",
        f"| compact: read and write survivors ({moving.bytes / 1e9:.2f} GB) | "
        f"{moving.floor_ms(*ceilings):.2f} |",
        "",
    ]


def compiler_of(build: Path) -> str:
    """The version of nvcc that CMake found."""
    for file in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        if match := re.search(r'CMAKE_CUDA_COMPILER_VERSION "([\d.]+)"', file.read_text()):
            return match[1]
    raise FileNotFoundError(f"{build} is not the folder of a CMake build with KVP_CUDA=ON")


def page(kernels: list[CompiledKernel], planner: Planner, compiler: str) -> str:
    """The whole page."""
    lines = [INTRODUCTION.format(compiler=compiler, ptx=PTX)]
    lines += resource_table(kernels, planner)
    lines += ["", COMPUTED.format(**WARP_ENTRIES)]
    for workload in WORKLOADS:
        for gpu in GPUS:
            lines += phase_table(workload, gpu, planner)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Gates the build, then writes or compares the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path, help="folder of a CMake build with KVP_CUDA=ON")
    parser.add_argument("--check", action="store_true", help="compare the page, do not write it")
    options = parser.parse_args()
    library = options.build / "libkvp.so"
    kernels = read_library(library)
    problems = list(gate(kernels, ptx_architectures(library)))
    for problem in problems:
        print(f"gate: {problem}", file=sys.stderr)
    if problems:
        return 1
    compiler = compiler_of(options.build)
    text = page(kernels, Planner(options.build / "cuda_plan"), compiler)
    print(text[text.index("| kernel") : text.index("## Computed")])
    if not options.check:
        PAGE.write_text(text)
        print(f"wrote {PAGE}")
    elif f"nvcc {compiler} " in PAGE.read_text() and PAGE.read_text() != text:
        print(f"{PAGE} is of another build: run make cuda, and commit it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
