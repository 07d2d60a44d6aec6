"""evict_, score, select and compact_ against their definition, on every backend."""

import pytest
import torch
from helpers import (
    DTYPES,
    LAYOUTS,
    Cache,
    assert_evicted,
    assert_same,
    assert_scores,
    expected_eviction,
    make_cache,
    per_head_pos,
    random_scores,
)

import kvp_ext
from python_ref import fold

# mode, budget, entries kept in all of 2 layers x 2 sequences x 2 heads
MODES = [("per_head", 10, 80), ("per_head", [12, 9], 84), ("union", 10, 80), ("model", 60, 120)]
ARCHITECTURES = ["small", "paper"]


def policy_for(cache: Cache, architecture: str = "small", **kwargs: object) -> kvp_ext.Policy:
    k, v = cache.rows()
    layer = next(t for t in k if t is not None)
    value = next(t for t in v if t is not None)
    return kvp_ext.Policy.random(
        layers=cache.layers,
        kv_heads=layer.shape[1],
        head_dim=layer.shape[3],
        head_dim_v=value.shape[3],
        architecture=architecture,
        **kwargs,
    )


def reference_scores(policy: kvp_ext.Policy, cache: Cache) -> torch.Tensor:
    """Scores in float64, by the definition."""
    k, v = cache.rows()
    pos = per_head_pos(cache.pos, cache.layers, *k[0].shape[:2])
    return fold.score(policy.folded, k, v, list(pos.unbind(0)), dtype=torch.float64)


@pytest.mark.parametrize("order", ["stable", "any"])
@pytest.mark.parametrize(("mode", "budget", "total"), MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_survivors_are_the_originals(backend, dtype, layout, mode, budget, total, order):
    cache = make_cache(dtype=dtype, layout=layout, pos="head", D=12)
    scores = random_scores(2, 2, 2, 24)
    want = expected_eviction(cache, scores, budget, sinks=2, recent=3, mode=mode, order=order)
    result = kvp_ext.evict_(
        cache.k,
        cache.v,
        cache.pos,
        budget,
        scores=scores,
        sinks=2,
        recent=3,
        mode=mode,
        order=order,
        return_indices=True,
        backend=backend,
    )
    assert_evicted(cache, result, want)
    assert result.evicted
    assert int(result.lengths.sum()) == total


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("pos", ["shared", "batch", "head"])
@pytest.mark.parametrize("pos_dtype", [torch.int32, torch.int64], ids=str)
def test_positions_of_every_form(backend, pos, pos_dtype, ties):
    cache = make_cache(pos=pos)
    cache.pos = cache.pos.to(pos_dtype)
    before = cache.pos.clone()
    scores = random_scores(2, 2, 2, 24, ties=ties)
    want = expected_eviction(cache, scores, 9)
    result = kvp_ext.evict_(cache.k, cache.v, cache.pos, 9, scores=scores.clone(), backend=backend)
    assert_evicted(cache, result, want)
    assert result.pos.dtype == pos_dtype
    assert result.pos.shape == (2, 2, 2, 9)
    if pos != "head":
        assert_same(cache.pos, before)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [16, 64, 80, 96, 112, 128, 160, 192, 256])
def test_scores_match_float64(backend, architecture, dtype, D):
    cache = make_cache(L=1, B=1, H=2, T=19, D=D, dtype=dtype)
    policy = policy_for(cache, architecture)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=backend)
    want = reference_scores(policy, cache)
    # The inputs are rounded already, so fp32 arithmetic is held to its bound for all dtypes.
    assert_scores(scores, want, backend, dtype)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_key_and_value_dims_may_differ(backend, architecture):
    cache = make_cache(D=192, Dv=128, T=40)
    policy = policy_for(cache, architecture)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=backend)
    assert_scores(scores, reference_scores(policy, cache), backend, torch.float32)
    want = expected_eviction(cache, scores, 24)
    result = kvp_ext.evict_(cache.k, cache.v, cache.pos, 24, policy=policy, backend=backend)
    assert_evicted(cache, result, want)


def test_positions_beyond_the_trained_ones_are_clamped(backend):
    cache = make_cache(L=1, B=1, H=1, T=6)
    policy = policy_for(cache, "paper", max_position=9)
    at_end = torch.tensor([9] * 6)
    beyond = torch.tensor([9, 10, 1000, 2**31, 2**40, 2**62])
    one = kvp_ext.score(cache.k, cache.v, at_end, policy=policy, backend=backend)
    other = kvp_ext.score(cache.k, cache.v, beyond, policy=policy, backend=backend)
    assert_same(one, other)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_evict_equals_score_select_compact(backend, architecture):
    cache = make_cache(L=3, B=2, H=2, T=200, D=16, pos="head")
    policy = policy_for(cache, architecture)
    other = cache.clone()
    fused = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 40, policy=policy, return_indices=True, backend=backend
    )
    scores = kvp_ext.score(other.k, other.v, other.pos, policy=policy, backend=backend)
    chosen = kvp_ext.select(scores, 40, pos=other.pos, backend=backend)
    steps = kvp_ext.compact_(other.k, other.v, other.pos, chosen, backend=backend)
    assert_same(fused.lengths, steps.lengths)
    assert_same(fused.kept, steps.kept)
    assert_same(fused.pos, steps.pos)
    for mine, theirs in zip(
        cache.rows()[0] + cache.rows()[1], other.rows()[0] + other.rows()[1], strict=True
    ):
        assert_same(mine[:, :, :40], theirs[:, :, :40])


def test_only_entries_without_a_score_are_scored(backend):
    cache = make_cache(L=2, B=1, H=2, T=30)
    policy = policy_for(cache)
    fresh = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=backend)
    buffer = fresh.clone()
    buffer[..., 5] = 1e6  # wrong on purpose: a present score must be believed
    buffer[..., 20:] = torch.nan
    believed = torch.where(buffer.isnan(), fresh, buffer)
    want = expected_eviction(cache, believed, 12, sinks=2, recent=2)
    result = kvp_ext.evict_(
        cache.k,
        cache.v,
        cache.pos,
        12,
        policy=policy,
        scores=buffer,
        sinks=2,
        recent=2,
        return_indices=True,
        backend=backend,
    )
    assert_evicted(cache, result, want)
    moved = believed.gather(-1, result.kept.long())
    assert_same(buffer[..., :12], moved, rtol=1e-6, atol=1e-6)
    assert bool(buffer[..., 12:].isnan().all())


def test_evicting_again_sees_no_stale_entries(backend):
    cache = make_cache(L=2, B=1, H=2, T=40, pos="head")
    policy, buffer = policy_for(cache), torch.full((2, 1, 2, 40), torch.nan)
    call = {"policy": policy, "scores": buffer, "sinks": 2, "recent": 3, "backend": backend}
    first = kvp_ext.evict_(cache.k, cache.v, cache.pos, 20, **call)
    assert bool((cache.pos[..., 20:] == -1).all())
    again = kvp_ext.evict_(cache.k, cache.v, cache.pos, 20, **call)
    assert first.evicted
    assert not again.evicted
    assert_same(again.pos, first.pos)
    # New entries written behind the survivors are alive again.
    cache.pos[..., 20:25] = torch.arange(40, 45)
    third = kvp_ext.evict_(cache.k, cache.v, cache.pos, 20, return_indices=True, **call)
    assert third.evicted
    assert int(third.kept.max()) == 24
    assert third.pos[..., -3:].flatten().unique().tolist() == [42, 43, 44]


def test_scores_without_policy_stand_and_nan_ranks_last(backend):
    cache = make_cache(L=1, B=1, H=1, T=8)
    scores = torch.tensor([torch.nan, -torch.inf, 0, torch.nan, 2, 1, -5, torch.nan])
    result = kvp_ext.evict_(
        cache.k,
        cache.v,
        cache.pos,
        6,
        scores=scores.view(1, 1, 1, 8),
        sinks=0,
        recent=0,
        return_indices=True,
        backend=backend,
    )
    assert result.kept.flatten().tolist() == [0, 1, 2, 4, 5, 6]


def test_skipped_layers_and_layers_of_different_length(backend):
    cache = make_cache(L=4, T=24, layout="list")
    cache.k[1] = cache.v[1] = None
    cache.k[3], cache.v[3] = cache.k[3][:, :, :13], cache.v[3][:, :, :13]
    pos = [torch.arange(24)] * 3 + [torch.arange(13)]
    scores = random_scores(4, 2, 2, 24)
    flat = Cache(cache.k, cache.v, torch.arange(24), 4)
    want = expected_eviction(flat, scores, 10, sinks=2, recent=2)
    result = kvp_ext.evict_(
        cache.k, cache.v, pos, 10, scores=scores, sinks=2, recent=2, backend=backend
    )
    assert_evicted(flat, result, want)
    assert result.lengths[1].tolist() == [[0, 0], [0, 0]]
    assert result.lengths[3].tolist() == [[10, 10], [10, 10]]


def test_all_layers_skipped_is_a_no_op(backend):
    result = kvp_ext.evict_(
        [None, None], [None, None], torch.arange(4), 2, scores=[None, None], backend=backend
    )
    assert not result.evicted
    assert result.lengths.shape == (2, 0, 0)


@pytest.mark.parametrize("policy_given", [True, False])
def test_a_budget_of_the_length_changes_nothing(backend, policy_given):
    cache = make_cache(T=16, pos="head")
    before = cache.clone()
    kwargs = (
        {"policy": policy_for(cache)} if policy_given else {"scores": random_scores(2, 2, 2, 16)}
    )
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 16, return_indices=True, backend=backend, **kwargs
    )
    assert not result.evicted
    assert_same(cache.k, before.k)
    assert_same(cache.v, before.v)
    assert_same(result.lengths, torch.full((2, 2, 2), 16, dtype=torch.int32))
    assert_same(result.kept, torch.arange(16, dtype=torch.int32).expand(2, 2, 2, 16))
    assert_same(result.pos, cache.pos)


def test_budget_below_sinks_and_recent(backend):
    scores = torch.arange(20.0).view(1, 1, 1, 20)
    pos = torch.arange(20)

    def kept(budget, **kwargs):
        chosen = kvp_ext.select(scores, budget, pos=pos, backend=backend, **kwargs)
        return chosen.kept[chosen.kept >= 0].tolist()

    assert kept(6, sinks=4, recent=5) == [0, 1, 2, 3, 18, 19]
    assert kept(3, sinks=4, recent=5) == [0, 1, 2]
    assert kept(0, sinks=4, recent=5) == [0]
    assert kept(0, sinks=0, recent=0) == [19]
    assert kept(1, sinks=0, recent=5) == [19]


def test_per_head_budgets_make_ragged_rows(backend):
    cache = make_cache(L=2, B=2, H=2, T=24)
    budget = torch.tensor([[[1, 24], [5, 100]], [[0, 7], [3, 2]]])
    scores = random_scores(2, 2, 2, 24)
    want = expected_eviction(cache, scores, budget, sinks=1, recent=1)
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, budget, scores=scores, sinks=1, recent=1, backend=backend
    )
    assert result.lengths.flatten().tolist() == [1, 24, 5, 24, 1, 7, 3, 2]
    assert_evicted(cache, result, want)


def test_empty_rows_in_the_batch(backend):
    cache = make_cache(B=3)
    lengths = torch.tensor([24, 0, -1])
    scores = random_scores(2, 3, 2, 24)
    before = cache.clone()
    result = kvp_ext.evict_(
        cache.k,
        cache.v,
        cache.pos,
        8,
        scores=scores,
        lengths=lengths,
        sinks=1,
        recent=1,
        backend=backend,
    )
    assert result.lengths[:, 0].unique().tolist() == [8]
    assert result.lengths[:, 1:].unique().tolist() == [0]
    assert_same(cache.k[:, 1:], before.k[:, 1:])


def test_lengths_of_one_sequence_or_of_each_row(backend):
    scores = random_scores(2, 2, 2, 24)
    by_batch = kvp_ext.select(
        scores, 8, pos=torch.arange(24), lengths=torch.tensor([20, 11]), backend=backend
    )
    by_row = kvp_ext.select(
        scores,
        8,
        pos=torch.arange(24),
        lengths=torch.tensor([20, 11], dtype=torch.int32).view(1, 2, 1).expand(2, 2, 2),
        backend=backend,
    )
    assert_same(by_batch.kept, by_row.kept)
    assert int(by_batch.kept[:, 0].max()) == 19
    assert int(by_batch.kept[:, 1].max()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 127, 129, 1000, 2049])
def test_lengths_around_tile_sizes(backend, T, seed):
    cache = make_cache(L=2, B=1, H=3, T=T, D=10, seed=seed)
    policy = policy_for(cache, seed=seed)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=backend)
    budget = max(1, T // 4)
    want = expected_eviction(cache, scores, budget)
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, budget, policy=policy, return_indices=True, backend=backend
    )
    assert_evicted(cache, result, want)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_thread_count_gives_the_same_bits(threads):
    results = []
    for count in (1, threads):
        kvp_ext.set_num_threads(count)
        try:
            cache = make_cache(L=3, B=2, H=2, T=400, D=24)
            result = kvp_ext.evict_(
                cache.k, cache.v, cache.pos, 90, policy=policy_for(cache), return_indices=True
            )
            results.append((result.kept, cache.k, cache.v))
        finally:
            kvp_ext.set_num_threads(None)
    for one, other in zip(*results, strict=True):
        assert_same(one, other)


def test_inference_tensors_are_evicted_outside_inference_mode(backend):
    with torch.inference_mode():
        cache = make_cache(pos="head")
        scores = random_scores(2, 2, 2, 24)
    want = expected_eviction(cache, scores, 10)
    result = kvp_ext.evict_(cache.k, cache.v, cache.pos, 10, scores=scores, backend=backend)
    assert_evicted(cache, result, want)
    result.pos.add_(1)  # the results are ordinary tensors


def test_a_default_device_does_not_matter():
    cache = make_cache()
    policy = kvp_ext.Policy.random(layers=2, kv_heads=2, head_dim=8, seed=9)
    want = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy)
    fresh = kvp_ext.Policy(policy.folded)
    with torch.device("meta"):
        scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=fresh)
        result = kvp_ext.evict_(cache.k, cache.v, cache.pos, 9, policy=fresh)
    assert_same(scores, want)
    assert result.lengths.unique().tolist() == [9]


def test_autograd_sees_that_the_cache_was_written(backend):
    cache = make_cache()
    q = torch.randn(8, requires_grad=True)
    loss = (cache.k @ q).sum()
    kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 9, scores=random_scores(2, 2, 2, 24), backend=backend
    )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("mode", ["per_head", "union", "model"])
@pytest.mark.parametrize("empty", ["L", "B", "H", "T"])
def test_dimensions_of_size_zero(backend, empty, mode):
    size = {"L": 2, "B": 1, "H": 3, "T": 8} | {empty: 0}
    shape = tuple(size.values())
    k, v = torch.zeros(*shape, 8), torch.zeros(*shape, 8)
    result = kvp_ext.evict_(
        k, v, torch.arange(size["T"]), 20, scores=torch.zeros(shape), mode=mode, backend=backend
    )
    assert not result.evicted
    assert result.lengths.numel() == shape[0] * shape[1] * shape[2]


def test_nan_and_inf_in_the_cache_stay_where_they_belong(backend):
    cache = make_cache(L=1, B=1, H=1, T=300, D=16)
    policy = policy_for(cache)
    clean = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=backend)
    cache.k[..., 7, 3] = torch.nan
    cache.v[..., 130, 0] = torch.inf
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=backend)
    assert bool(scores[..., 7].isnan().all())
    others = [i for i in range(300) if i not in (7, 130)]
    assert_same(scores[..., others], clean[..., others])
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 200, policy=policy, return_indices=True, backend=backend
    )
    assert 7 not in result.kept.flatten().tolist()
