"""Faults that users of eviction and kernel libraries reported in public, as small inputs.

Each test names the kind of fault; those about the transformers cache are in
tests/integrations/test_transformers.py.
"""

import subprocess
import sys

import pytest
import torch
from helpers import Cache, assert_evicted, assert_same, expected_eviction, make_cache, random_scores

import kvp_ext


def policy_like(cache: Cache, **kwargs) -> kvp_ext.Policy:
    L, _, H, _, D = cache.k.shape
    return kvp_ext.Policy.random(
        layers=L, kv_heads=H, head_dim=D, head_dim_v=cache.v.shape[-1], **kwargs
    )


def test_padding_is_never_kept(backend):
    """Padding scored as tokens: lengths 24 and 16, left-padded, budget 12."""
    cache = make_cache(L=2, B=2, H=2, T=24, pos="batch")
    cache.pos[1] = (torch.arange(24) - 8).clamp(min=-1)
    alone = Cache(cache.k[:, 1:, :, 8:].clone(), cache.v[:, 1:, :, 8:].clone(), torch.arange(16), 2)
    policy = policy_like(cache)
    kwargs = {"policy": policy, "sinks": 2, "recent": 3, "return_indices": True}
    both = kvp_ext.evict_(cache.k, cache.v, cache.pos, 12, backend=backend, **kwargs)
    one = kvp_ext.evict_(alone.k, alone.v, alone.pos, 12, backend=backend, **kwargs)
    assert int(both.kept[:, 1].min()) >= 8
    assert bool((both.pos >= 0).all())
    assert_same(both.pos[:, 1], one.pos[:, 0])
    assert_same(both.kept[:, 1], one.kept[:, 0] + 8)
    assert_same(cache.k[:, 1, :, :12], alone.k[:, 0, :, :12])
    assert_same(cache.v[:, 1, :, :12], alone.v[:, 0, :, :12])


@pytest.mark.parametrize("lengths", [None, torch.tensor([24, 16])])
def test_left_padding_with_or_without_lengths(backend, lengths):
    """`lengths` counts valid entries, wherever the padding is."""
    pos = torch.arange(24).expand(2, 24).clone()
    pos[1] = (torch.arange(24) - 8).clamp(min=-1)
    chosen = kvp_ext.select(
        random_scores(1, 2, 1, 24), 12, pos=pos, lengths=lengths, backend=backend
    )
    assert chosen.kept[0, 1, 0, :4].tolist() == [8, 9, 10, 11]
    assert chosen.kept[0, 1, 0, -1] == 23
    assert chosen.lengths.flatten().tolist() == [12, 12]


def test_positions_after_a_hundred_rounds(backend):
    """Positions lost or drifting after repeated eviction: 100 rounds of evict and append."""
    L, B, H, T, D, keep = 2, 1, 2, 24, 8, 16
    g = torch.Generator().manual_seed(0)
    originals_k = torch.randn(L, B, H, keep + 100 * 8, D, generator=g)
    originals_v = torch.randn(L, B, H, keep + 100 * 8, D, generator=g)
    k, v = torch.zeros(L, B, H, T, D), torch.zeros(L, B, H, T, D)
    pos = torch.full((L, B, H, T), -1)
    scores = torch.full((L, B, H, T), torch.nan)
    k[..., :keep, :], v[..., :keep, :] = originals_k[..., :keep, :], originals_v[..., :keep, :]
    pos[..., :keep] = torch.arange(keep)
    policy = kvp_ext.Policy.random(layers=L, kv_heads=H, head_dim=D)
    logical = keep
    for _ in range(100):
        for name, buffer in ((originals_k, k), (originals_v, v)):
            buffer[..., keep:T, :] = name[..., logical : logical + 8, :]
        pos[..., keep:T] = torch.arange(logical, logical + 8)
        scores[..., keep:T] = torch.nan
        logical += 8
        result = kvp_ext.evict_(
            k, v, pos, keep, policy=policy, scores=scores, sinks=2, recent=4, backend=backend
        )
        assert result.lengths.unique().tolist() == [keep]
        assert int(pos[..., keep - 1].min()) == logical - 1
    index = pos[..., :keep]
    assert bool((index.diff(dim=-1) > 0).all())
    gather = index[..., None].expand(-1, -1, -1, -1, D)
    assert_same(k[..., :keep, :], originals_k.gather(3, gather))
    assert_same(v[..., :keep, :], originals_v.gather(3, gather))
    fresh = kvp_ext.score(
        k[..., :keep, :], v[..., :keep, :], index.contiguous(), policy=policy, backend=backend
    )
    assert_same(scores[..., :keep], fresh, rtol=1e-6, atol=1e-6)
    assert index[0, 0, 0, :2].tolist() == [0, 1]


@pytest.mark.parametrize("value", [1.0, -torch.inf, torch.inf, torch.nan])
def test_protected_entries_survive_saturated_scores(backend, value):
    """Protected window evicted when scores tie or saturate."""
    scores = torch.full((1, 1, 1, 40), value)
    chosen = kvp_ext.select(scores, 12, pos=torch.arange(40), sinks=4, recent=5, backend=backend)
    assert chosen.kept.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 35, 36, 37, 38, 39]


@pytest.mark.parametrize("n", [0, 1, 5, 12])
def test_short_prompts_are_left_alone(backend, n):
    """Nonsense on very short prompts: n = 0, 1, n <= window, n <= budget."""
    cache = make_cache(T=n, pos="head")
    before = cache.clone()
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 12, policy=policy_like(cache), sinks=4, recent=16,
        backend=backend,
    )  # fmt: skip
    assert not result.evicted
    assert result.lengths.unique().tolist() == [n]
    assert_same(cache.k, before.k)
    assert_same(cache.v, before.v)
    assert_same(cache.pos, before.pos)


def test_order_of_ties_and_nan(backend):
    """Tie and NaN order differs between devices and runs: ours is documented."""
    scores = torch.tensor([0.0, -0.0, torch.nan, 0.0, -1e-45, 1e-45, -torch.inf, torch.nan, 0.0])
    scores = scores.view(1, 1, 1, -1)
    sets = []
    for budget in range(1, 10):
        for _ in range(3):
            chosen = kvp_ext.select(
                scores, budget, pos=torch.arange(9), sinks=0, recent=0, backend=backend
            )
            sets.append(set(chosen.kept.flatten().tolist()))
        assert sets[-1] == sets[-2] == sets[-3]
    order = [5, 0, 1, 3, 8, 4, 6, 2, 7]
    assert sets[::3] == [set(order[:n]) for n in range(1, 10)]


@pytest.mark.parametrize("crowd", ["one coarse bin", "all equal", "one ulp apart"])
def test_no_candidate_is_dropped_when_they_crowd(backend, crowd):
    """Top-k silently truncated when candidates crowd one bin: exactly k, and the right ones."""
    n, k = 65_536, 20_000
    g = torch.Generator().manual_seed(0)
    scores = {
        "one coarse bin": torch.rand(n, generator=g) * 0.245 + 1.0,
        "all equal": torch.ones(n),
        "one ulp apart": 1.0 + torch.randint(0, 3, (n,), generator=g) * 2.0**-23,
    }[crowd]
    chosen = kvp_ext.select(
        scores.view(1, 1, 1, n), k, pos=torch.arange(n), sinks=0, recent=0, backend=backend
    )
    want = scores.argsort(descending=True, stable=True)[:k].sort().values
    assert chosen.lengths.item() == k
    assert_same(chosen.kept.flatten().long(), want)


def test_slots_past_the_new_length_are_finite(backend):
    """NaN in unused slots poisons attention."""
    cache = make_cache(T=50, D=16)
    kvp_ext.evict_(cache.k, cache.v, cache.pos, 20, policy=policy_like(cache), backend=backend)
    assert bool(cache.k.isfinite().all())
    assert bool(cache.v.isfinite().all())
    mask = torch.arange(50) < 20
    q = torch.randn(2, 2, 2, 1, 16)
    out = torch.nn.functional.scaled_dot_product_attention(q, cache.k, cache.v, attn_mask=mask)
    assert bool(out.isfinite().all())


PEAK_OF_A_CALL = """
import resource

import torch

import kvp_ext

L, B, H, T, D = 4, 1, 8, 16_384, 64
k, v = torch.ones(L, B, H, T, D), torch.ones(L, B, H, T, D)
policy = kvp_ext.Policy.random(layers=L, kv_heads=H, head_dim=D)
pos = torch.arange(T)
kvp_ext.evict_(k[..., :64, :], v[..., :64, :], pos[:64], 32, policy=policy)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kvp_ext.evict_(k, v, pos, T // 4, policy=policy)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(grown / (2 * k.numel() * 4))
"""


def test_memory_stays_at_the_kv_heads():
    """KV heads expanded to query heads: the extra memory of a call is far below the cache's.

    In a process of its own, whose peak no earlier test has raised.
    """
    done = subprocess.run(
        [sys.executable, "-c", PEAK_OF_A_CALL], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) <= 0.02


def test_no_allocation_grows_with_the_steps():
    """Allocation on every step: a decode-time call allocates its small results and nothing else."""
    cache = make_cache(L=2, B=1, H=2, T=512, D=32, pos="head")
    policy = policy_like(cache)
    scores = torch.full((2, 1, 2, 512), torch.nan)
    kwargs = {"policy": policy, "scores": scores, "lengths": torch.full((2, 1, 2), 300)}
    kvp_ext.evict_(cache.k, cache.v, cache.pos, 256, **kwargs)

    def allocated(steps: int) -> int:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            for _ in range(steps):
                kvp_ext.evict_(cache.k, cache.v, cache.pos, 256, **kwargs)
        return sum(max(0, e.self_cpu_memory_usage) for e in profile.events())

    allocated(1)
    per_step = (allocated(9) - allocated(1)) / 8
    results = 4 * 256 * 8 + 4 * 4 + 4 + 4 * 4  # pos, lengths, changed, lengths as int32
    assert per_step <= 2 * results


def test_calls_do_not_leak_into_each_other(backend):
    """State of one batch leaks into the next: order of requests permuted between calls."""
    caches = [make_cache(T=t, seed=t) for t in (30, 200, 64)]
    policy = policy_like(caches[0])

    def run(order):
        out = {}
        for i in order:
            c = caches[i].clone()
            r = kvp_ext.evict_(
                c.k, c.v, c.pos, 20, policy=policy, return_indices=True, backend=backend
            )
            out[i] = (r.kept, r.pos, c.k[..., :20, :], c.v[..., :20, :])
        return out

    first, second = run([0, 1, 2]), run([2, 0, 1])
    for i in range(3):
        for one, other in zip(first[i], second[i], strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_misaligned_views_are_right(backend, dtype, offset):
    """Contiguous but misaligned view faults."""
    aligned = make_cache(D=16, dtype=dtype)
    shifted = aligned.clone()
    for name in ("k", "v"):
        tensor = getattr(aligned, name)
        storage = torch.zeros(tensor.numel() + offset, dtype=dtype)
        storage[offset:] = tensor.flatten()
        setattr(shifted, name, storage[offset:].view(tensor.shape))
    policy = policy_like(aligned)
    results = [
        kvp_ext.evict_(
            c.k, c.v, c.pos, 20, policy=policy, sinks=1, recent=1, return_indices=True,
            backend=backend,
        )
        for c in (aligned, shifted)
    ]  # fmt: skip
    assert_same(results[0].kept, results[1].kept)
    assert_same(aligned.k, shifted.k)
    assert_same(aligned.v, shifted.v)


def test_expanded_memory_is_refused(backend):
    """Expanded (stride-0) memory written in place."""
    base = torch.randn(1, 1, 1, 24, 8)
    before = base.clone()
    cache = make_cache(L=1)
    with pytest.raises(ValueError, match=r"k_cache.*stride"):
        kvp_ext.evict_(
            base.expand(1, 2, 2, 24, 8), cache.v, cache.pos, 4,
            scores=random_scores(1, 2, 2, 24), backend=backend,
        )  # fmt: skip
    assert_same(base, before)


@pytest.mark.parametrize("architecture", ["small", "paper"])
@pytest.mark.parametrize("dims", [64, 80, 96, 112, 128, 160, 192, 256, (192, 128)])
def test_head_dims(backend, dims, architecture):
    """Head dim fixed at 128."""
    Dk, Dv = dims if isinstance(dims, tuple) else (dims, dims)
    cache = make_cache(L=1, B=1, H=1, T=33, D=Dk, Dv=Dv)
    policy = policy_like(cache, architecture=architecture)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=backend)
    want = expected_eviction(cache, scores, 24)
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 24, policy=policy, return_indices=True, backend=backend
    )
    assert_evicted(cache, result, want)


def test_budgets_from_ratios():
    """`int(1000 * (1 - 0.9))` is 99, and `T = 1` keeps nothing."""
    assert kvp_ext.budget_from_ratio(1000, compression_ratio=0.9) == 100
    assert kvp_ext.budget_from_ratio(1000, keep_ratio=0.1) == 100
    assert kvp_ext.budget_from_ratio(1, compression_ratio=0.9) == 1
    assert kvp_ext.budget_from_ratio(10, keep_ratio=0.25) == 3
    assert kvp_ext.budget_from_ratio(7, keep_ratio=1.0) == 7
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="keep_ratio"):
            kvp_ext.budget_from_ratio(10, keep_ratio=bad)


@pytest.mark.parametrize("marked_by", ["lengths", "pos"])
def test_empty_slots_of_a_static_cache_never_win(backend, marked_by):
    """A preallocated (static) cache: 64 slots, 16 valid, budget 8: eight real tokens kept."""
    cache = make_cache(T=64)
    cache.k[..., 16:, :] = cache.v[..., 16:, :] = 0
    pos, lengths = torch.arange(64), None
    if marked_by == "pos":
        pos = torch.where(pos < 16, pos, -1)
    else:
        lengths = torch.tensor([16, 16])
    result = kvp_ext.evict_(
        cache.k, cache.v, pos, 8, policy=policy_like(cache), lengths=lengths, sinks=1, recent=1,
        return_indices=True, backend=backend,
    )  # fmt: skip
    assert result.lengths.unique().tolist() == [8]
    assert int(result.kept.max()) == 15
    assert int(result.kept.min()) == 0


def test_a_second_turn_is_compressed_too(backend):
    """Two turns: 512 -> 128, +512, -> 128: both compress, positions right."""
    k, v = torch.randn(1, 1, 2, 640, 8), torch.randn(1, 1, 2, 640, 8)
    pos = torch.full((1, 1, 2, 640), -1)
    pos[..., :512] = torch.arange(512)
    policy = kvp_ext.Policy.random(layers=1, kv_heads=2, head_dim=8)
    first = kvp_ext.evict_(
        k, v, pos, 128, policy=policy, lengths=torch.tensor([512]), backend=backend
    )
    assert first.lengths.unique().tolist() == [128]
    new = torch.randn(1, 1, 2, 512, 8)
    k[..., 128:, :], v[..., 128:, :] = new, new
    pos[..., 128:] = torch.arange(512, 1024)
    second = kvp_ext.evict_(k, v, pos, 128, policy=policy, backend=backend)
    assert second.lengths.unique().tolist() == [128]
    assert pos[0, 0, 0, :4].tolist() == [0, 1, 2, 3]
    assert pos[0, 0, 0, 112:128].tolist() == list(range(1008, 1024))
    assert bool((pos[..., :128].diff(dim=-1) > 0).all())


@pytest.mark.parametrize("axis", ["layer", "batch", "head", "slot"])
@pytest.mark.parametrize("D", [7, 8])
def test_more_than_two_to_the_31_elements(backend, D, axis):
    """32-bit offset overflow: entries whose offset passes 2**31 elements move correctly.

    Entries of 7 channels are moved by the element, those of 8 in wider words. The storage is sparse
    memory (an untouched anonymous mapping), so only the pages used exist.
    """
    import mmap

    L, B, H, T = 2, 2, 2, 40
    # Far apart along one axis and dense along the others, V after K.
    strides = dict(zip(("layer", "batch", "head", "slot"), (B * H * T, H * T, T, 1), strict=True))
    strides = {name: entries * D for name, entries in strides.items()}
    size = {"layer": L, "batch": B, "head": H, "slot": T}[axis]
    strides[axis] = 2**31 // (size - 1) // D * D + 4 * L * B * H * T * D
    v_start = 2 * L * B * H * T * D
    memory = mmap.mmap(-1, 2 * (strides[axis] * (size - 1) + 2 * v_start))
    storage = torch.frombuffer(memory, dtype=torch.bfloat16)
    k, v = (
        storage[start:].as_strided((L, B, H, T, D), (*strides.values(), 1))
        for start in (0, v_start)
    )
    small = make_cache(L=L, B=B, H=H, T=T, D=D, dtype=torch.bfloat16)
    k.copy_(small.k)
    v.copy_(small.v)
    scores = random_scores(L, B, H, T)
    want = expected_eviction(small, scores, 9, sinks=1, recent=1)
    big = Cache(k, v, small.pos, L)
    policy = policy_like(small)
    assert_same(
        kvp_ext.score(k, v, big.pos, policy=policy, backend=backend),
        kvp_ext.score(small.k, small.v, small.pos, policy=policy, backend=backend),
    )
    result = kvp_ext.evict_(k, v, big.pos, 9, scores=scores, sinks=1, recent=1, backend=backend)
    assert_evicted(big, result, want)
