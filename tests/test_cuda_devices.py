"""What the CUDA backend says on devices that it has no kernels for, on the host layer."""

import pytest
import torch
from helpers import assert_same, make_cache
from simt import needs_simt, pretend

import kvp_ext

pytestmark = needs_simt


@pytest.fixture(autouse=True)
def first_device_again():
    yield
    pretend(0)


def evict(cache, architecture="paper"):
    policy = kvp_ext.Policy.random(layers=2, kv_heads=2, head_dim=8, architecture=architecture)
    return kvp_ext.evict_(cache.k, cache.v, cache.pos, 6, policy=policy, backend="simt")


@pytest.mark.parametrize(
    ("device", "policy", "problem"),
    [
        (75, "small", "compute capability 7.5, the CUDA kernels need 8.0 or newer"),
        (90, "small", "compute capability 9.0, this build of kvp has kernels for"),
        (89, "paper", r"needs \d+ bytes of shared memory.*this device has 101376"),
    ],
)
def test_a_device_without_a_kernel_is_named_and_nothing_moves(device, policy, problem):
    cache = make_cache()
    before = cache.clone()
    pretend(device)
    with pytest.raises(RuntimeError, match=problem):
        evict(cache, policy)
    for now, then in zip(
        [*cache.k, *cache.v, cache.pos], [*before.k, *before.v, before.pos], strict=True
    ):
        assert_same(now, then)
    pretend(0)
    assert evict(cache).lengths.eq(6).all()


@pytest.mark.parametrize("device", [80, 86, 89])
def test_a_kernel_runs_on_newer_devices_of_its_generation(device):
    pretend(device)
    assert torch.equal(evict(make_cache(), "small").lengths, torch.full((2, 2, 2), 6).int())
