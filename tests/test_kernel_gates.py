"""The gates on what nvcc made of the kernels: what must stop a build does."""

from collections import Counter
from dataclasses import replace

import kernel_resources
import pytest
import sass

GOOD = Counter(
    {
        "LDG.E.128": 40,
        "STG.E.128": 8,
        "HMMA.16816.F32.BF16": 160,
        "LDGSTS.E.BYPASS.128": 12,
        "LDS.128": 9,
        "STL_LOOKALIKE": 1,
    }
)
KERNEL = sass.CompiledKernel("evict, bf16, wide", "sm_90a", 255, 0, GOOD)


def build(**change):
    """A build of one kernel in which the one for sm_90a differs."""
    kernels = [replace(KERNEL, architecture=a) for a in kernel_resources.ARCHITECTURES]
    opcodes = Counter({**GOOD, **change.pop("opcodes", {})})
    return [
        replace(k, **change, opcodes=+opcodes) if k.architecture == "sm_90a" else k for k in kernels
    ]


def test_a_good_build_passes():
    assert list(kernel_resources.gate(build(), ["sm_90"])) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"stack_bytes": 8}, "local memory"),
        ({"opcodes": {"LDL": 1}}, "local memory"),
        ({"opcodes": {"STL.64": 1}}, "local memory"),
        ({"opcodes": {"LDG.E.128": 0, "LDG.E.64": 80}}, "16 bytes"),
        ({"opcodes": {"STG.E.128": 0, "STG.E": 32}}, "16 bytes"),
        ({"opcodes": {"LDG.E.CONSTANT": 1}}, "read-only cache"),
        ({"opcodes": {"LDG.E.128.CONSTANT": 1}}, "read-only cache"),
        ({"opcodes": {"LDGSTS.E.BYPASS.128": 0}}, "asynchronously"),
        ({"opcodes": {"HMMA.16816.F32.BF16": 0}}, "tensor-core"),
        ({"opcodes": {"HMMA.16816.F32.BF16": 0, "HMMA.16816.F32": 160}}, "tensor-core"),
        ({"name": "evict, fp16, wide"}, "tensor-core"),
        ({"architecture": "sm_90"}, "not built for sm_90a"),
    ],
)
def test_a_bad_build_does_not(change, problem):
    assert any(problem in p for p in kernel_resources.gate(build(**change), ["sm_90"]))


def test_ptx_must_be_there():
    assert list(kernel_resources.gate(build(), [])) == ["no PTX for sm_90"]


def test_occupancy_is_bound_by_the_scarcest_resource():
    def blocks(registers, shared):
        return kernel_resources.blocks_per_processor(replace(KERNEL, registers=registers), shared)

    assert blocks(255, 50 << 10) == 1  # registers
    assert blocks(128, 50 << 10) == 2  # registers: 65,536 / (128 * 256)
    assert blocks(40, 113 << 10) == 2  # shared memory: 228 KB / (113 + 1) KB
    assert blocks(40, 114 << 10) == 1
    assert blocks(24, 0) == 8  # warps


RESOURCES = """
Fatbin elf code:
================
arch = sm_80
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function _ZN3kvp4cuda12evict_kernelINS0_4Bf16ELi64EEEvNS0_6ParamsE:
  REG:126 STACK:16 SHARED:0 LOCAL:0 CONSTANT[2]:56 CONSTANT[0]:28656 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SASS = """
\tcode for sm_80
\t\tFunction : _ZN3kvp4cuda12evict_kernelINS0_4Bf16ELi64EEEvNS0_6ParamsE
\t.headerflags\t@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM80"
        /*0000*/                   MOV R1, c[0x0][0x28] ; /* 0x00000a0000017a02 */
        /* 0x000fe40000000f00 */
        /*0010*/              @!P0 LDG.E.128 R4, [R2.64] ; /* 0x0000000402047981 */
        /*0020*/              @UP1 STL [R1], R4 ; /* 0x0000000402047981 */
"""


def test_the_output_of_cuobjdump_is_read(monkeypatch, tmp_path):
    answers = {"--dump-resource-usage": RESOURCES, "--dump-sass": SASS}
    monkeypatch.setattr(sass, "_run", lambda option, library: answers[option])
    (kernel,) = sass.read_library(tmp_path / "libkvp.so")
    assert (kernel.name, kernel.architecture) == ("evict, bf16, narrow", "sm_80")
    assert (kernel.registers, kernel.stack_bytes) == (126, 16)
    assert kernel.opcodes == Counter(["MOV", "LDG.E.128", "STL"])
    assert kernel.count("LDG", "128") == 1
    assert kernel.count("LDG", "64") == 0
    assert kernel.count("STL") == 1


def test_a_library_without_kernels_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(sass, "_run", lambda option, library: "")
    with pytest.raises(ValueError, match="0 kernels"):
        sass.read_library(tmp_path / "libkvp.so")
    unknown = RESOURCES.replace("evict_kernel", "other").replace("4Bf16ELi64E", "")
    monkeypatch.setattr(
        sass,
        "_run",
        lambda option, library: (
            unknown
            if "usage" in option
            else SASS.replace("evict_kernel", "other").replace("4Bf16ELi64E", "")
        ),
    )
    with pytest.raises(ValueError, match="not one that"):
        sass.read_library(tmp_path / "libkvp.so")
