"""Every instruction set that the CPU backend has and this machine can run."""

import pytest
import torch
from helpers import DTYPES, assert_same, make_cache

import kvp_ext
from kvp_ext import _C
from python_ref import fold


@pytest.fixture(params=_C.cpu_isas())
def isa(request: pytest.FixtureRequest):
    _C.cpu_use_isa(request.param)
    yield request.param
    _C.cpu_use_isa(None)


def test_the_portable_kernels_are_always_there():
    assert _C.cpu_isas()[-1] == "baseline"


@pytest.mark.parametrize("architecture", ["small", "paper"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [1, 5, 64, 80, 128])
def test_scores_match_float64(isa, architecture, dtype, D):
    cache = make_cache(L=1, B=1, H=2, T=171, D=D, dtype=dtype)
    policy = kvp_ext.Policy.random(layers=1, kv_heads=2, head_dim=D, architecture=architecture)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy)
    want = fold.score(policy.folded, cache.k, cache.v, cache.pos, dtype=torch.float64)
    assert_same(scores.double(), want, rtol=1e-4, atol=1e-5)


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match='isa is "v5"'):
        _C.cpu_use_isa("v5")
