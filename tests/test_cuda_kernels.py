"""The CUDA kernels on the host layer: what only they can get wrong.

What every backend must do is tested on "simt" beside the others, in one schedule. Here are all
schedules, shapes around the kernels' tiles, memory at the edges of rows, and what they refuse.
"""

import dataclasses
import itertools

import pytest
import torch
from helpers import (
    DTYPES,
    Cache,
    assert_evicted,
    assert_same,
    assert_scores,
    expected_eviction,
    make_cache,
    per_head_pos,
    random_scores,
)
from simt import SCHEDULES, needs_simt, schedule

import kvp_ext
from kvp_ext import _C, packing
from python_ref import fold, selection

pytestmark = needs_simt

MODES = ("per_head", "union", "model")
ORDERS = ("stable", "any")
# A block reads 2,048 slots at a time; its chunk is up to 512 (wide policies) or 1,024 (narrow).
T = 2051
SLOTS = 2 * 1 * 2 * T


def from_bits(bits):
    return bits.to(torch.int32).view(torch.float32)


def nan_payloads(g, shape):
    """A third are NaNs of either sign and any payload."""
    bits = (torch.randint(1 << 22, shape, generator=g) | 0x7FC00000) - torch.randint(
        2, shape, generator=g
    ) * 2**31
    is_nan = torch.rand(shape, generator=g) < 1 / 3
    return torch.where(is_nan, from_bits(bits), torch.randn(shape, generator=g))


def some_of(values):
    def draw(g, shape):
        return torch.tensor(values)[torch.randint(len(values), shape, generator=g)]

    return draw


ADVERSARIAL = {
    "all equal": lambda g, shape: torch.full(shape, 0.25),
    # The upper 22 bits agree, so two radix passes of 11 bits tell nothing.
    "one coarse bin": lambda g, shape: from_bits(
        0x3F800000 + torch.randint(1024, shape, generator=g)
    ),
    "last bit": lambda g, shape: from_bits(0x3F800000 + torch.randint(2, shape, generator=g)),
    "signed zeros": some_of([0.0, -0.0]),
    "denormals": lambda g, shape: from_bits(
        torch.randint(1, 1 << 23, shape, generator=g) - torch.randint(2, shape, generator=g) * 2**31
    ),
    "NaN": nan_payloads,
    "all NaN": lambda g, shape: torch.full(shape, torch.nan),
    "infinities": some_of([torch.inf, -torch.inf, torch.nan, 3e38, -3e38, 0.0]),
    "descending": lambda g, shape: torch.arange(shape[-1], 0, -1.0).expand(shape).clone(),
}


def policy_for(cache, architecture, **options):
    k, v = cache.rows()
    return kvp_ext.Policy.random(
        layers=cache.layers,
        kv_heads=k[0].shape[1],
        head_dim=k[0].shape[3],
        head_dim_v=v[0].shape[3],
        architecture=architecture,
        **options,
    )


def float64_scores(policy, cache):
    k, v = cache.rows()
    pos = per_head_pos(cache.pos, cache.layers, *k[0].shape[:2])
    return fold.score(policy.folded, k, v, list(pos.unbind(0)), dtype=torch.float64)


# ---- selection ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_selection_of_adversarial_scores_in_every_schedule(kind, mode, name):
    g = torch.Generator().manual_seed(1)
    scores = ADVERSARIAL[kind](g, (2, 1, 2, T))
    pos = torch.arange(T)
    rows = 4
    budgets = (rows, rows + 1, SLOTS // 3, SLOTS - 1, SLOTS) if mode == "model" else (
        0, 1, T // 3, T - 1, T)  # fmt: skip
    pins = itertools.cycle([(0, 0), (4, 16), (1000, 50)])
    for budget, (sinks, recent) in zip(budgets, pins, strict=False):
        rules = {"sinks": sinks, "recent": recent, "mode": mode}
        want = selection.select(scores, budget, pos=per_head_pos(pos, 2, 1, 2), **rules)
        with schedule(name):
            chosen = kvp_ext.select(scores, budget, pos=pos, backend="simt", **rules)
        assert_same(chosen.lengths, want.lengths)
        width = want.kept.shape[-1]
        assert_same(chosen.kept[..., :width], want.kept)
        assert bool((chosen.kept[..., width:] == -1).all())


@pytest.mark.parametrize("n", [16_383, 16_384, 16_385, 40_001])
@pytest.mark.parametrize("padding", ["none", "inside", "left"])
def test_rows_longer_than_what_a_block_counts_at_a_time(n, padding):
    g = torch.Generator().manual_seed(n)
    pos = torch.arange(n).expand(1, 3, 1, n).clone()
    if padding == "inside":
        pos[torch.rand(1, 3, 1, n, generator=g) < 0.3] = -1
    elif padding == "left":
        pos[..., :9000] = -1
    lengths = torch.tensor([n, n // 2, 16_000])
    scores = torch.randn(1, 3, 1, n, generator=g)
    for budget in (n // 3, 5):
        rules = {"lengths": lengths, "sinks": 3, "recent": 5}
        want = selection.select(scores, budget, pos=pos, **rules)
        chosen = kvp_ext.select(scores, budget, pos=pos, backend="simt", **rules)
        assert_same(chosen.lengths, want.lengths)
        assert_same(chosen.kept[..., : want.kept.shape[-1]], want.kept)


# ---- survivors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
def test_survivors_in_every_schedule(mode, order, name):
    """Rows of several chunks and batches of words, lengths 0 and -1 among them."""
    L, B, H, n = 2, 4, 2, 317
    scores = random_scores(L, B, H, n, seed=3, ties=True)
    lengths = torch.tensor([n, 0, -1, 200])
    rules = {"lengths": lengths, "sinks": 2, "recent": 3, "mode": mode, "order": order}
    cache = make_cache(L, B, H, n, 20, 12, dtype=torch.float16, pos="head")
    for layer in range(L):
        cache.pos[layer, 3, :, 50:90] = -1
    budget = 700 if mode == "model" else 101
    want = expected_eviction(cache, scores, budget, **rules)
    with schedule(name):
        result = kvp_ext.evict_(
            cache.k, cache.v, cache.pos, budget,
            scores=scores, return_indices=True, backend="simt", **rules,
        )  # fmt: skip
    assert_evicted(cache, result, want)
    assert result.evicted


@pytest.mark.parametrize("architecture", ["small", "paper"])
@pytest.mark.parametrize("mode", MODES)
def test_an_eviction_is_the_same_in_every_schedule(architecture, mode):
    found = []
    for name in SCHEDULES:
        cache = make_cache(2, 1, 2, 700, 32, dtype=torch.bfloat16, pos="head")
        buffer = torch.full((2, 1, 2, 700), torch.nan)
        policy = policy_for(cache, architecture)
        with schedule(name):
            result = kvp_ext.evict_(
                cache.k, cache.v, cache.pos, 900 if mode == "model" else 150,
                policy=policy, scores=buffer, mode=mode, return_indices=True, backend="simt",
            )  # fmt: skip
        found.append((result.lengths, result.kept, cache.pos, cache.k, cache.v, buffer))
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert_same(mine, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("gap", [0, 1, 8])
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_written_between_rows(dtype, offset, gap, order):
    """Misaligned and padded rows move right; the canaries around them stay."""
    B, H, n, D = 1, 2, 150, 24
    row = D + gap
    storage = torch.full((offset + B * H * (n * row + 5),), 77.0, dtype=dtype)
    strides = (H * (n * row + 5), n * row + 5, row, 1)
    k = storage.as_strided((B, H, n, D), strides, offset)
    small = make_cache(1, B, H, n, D, dtype=dtype)
    k.copy_(small.k[0])
    inside = torch.zeros(storage.shape, dtype=torch.bool)
    inside.as_strided(k.shape, strides, offset).fill_(True)
    cache = Cache([k], [small.v[0].clone()], small.pos, 1)
    scores = random_scores(1, B, H, n)
    want = expected_eviction(cache, scores, 60, sinks=1, recent=1, order=order)
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 60,
        scores=scores, sinks=1, recent=1, order=order, backend="simt",
    )  # fmt: skip
    assert_evicted(cache, result, want)
    assert bool((storage[~inside] == 77).all())


# ---- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [(1, 1), (7, 3), (17, 33), (40, 64), (64, 192), (255, 256)])
@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_scores_of_odd_head_dims(architecture, dims, dtype):
    cache = make_cache(1, 2, 2, 35, *dims, dtype=dtype)
    policy = policy_for(cache, architecture)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    assert_scores(scores, float64_scores(policy, cache), "simt", dtype)


def policy_of_width(hidden, family, D):
    """A random policy with hidden layers of any width, scaled so that scores stay of size 1."""
    folded = kvp_ext.Policy.random(layers=1, kv_heads=2, head_dim=D, architecture=family).folded
    g = torch.Generator().manual_seed(hidden)
    tensors = {}
    for name, t in folded.tensors.items():
        shape = [hidden if n == folded.hidden else n for n in t.shape]
        if name.startswith("gain"):  # of the head dims alone
            tensors[name] = t
        elif name.endswith("weight") and len(shape) == 4:
            tensors[name] = torch.randn(shape, generator=g) * shape[-1] ** -0.5
        else:
            tensors[name] = torch.randn(shape, generator=g) * 0.3
    return kvp_ext.Policy(dataclasses.replace(folded, hidden=hidden, tensors=tensors))


@pytest.mark.parametrize("hidden", [1, 8, 33, 63])
def test_scores_of_narrow_hidden_layers(hidden):
    cache = make_cache(1, 1, 2, 150, 48, dtype=torch.bfloat16)
    policy = policy_of_width(hidden, "small", 48)
    assert policy.hidden == hidden
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    assert_scores(scores, float64_scores(policy, cache), "simt", torch.bfloat16)


@pytest.mark.parametrize("hidden", [40, 65, 128, 255])
def test_scores_of_wide_hidden_layers(hidden):
    cache = make_cache(1, 1, 2, 150, 48, dtype=torch.bfloat16)
    policy = policy_of_width(hidden, "paper", 48)
    assert policy.hidden == hidden
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    assert_scores(scores, float64_scores(policy, cache), "simt", torch.bfloat16)


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_a_score_depends_on_its_entry_alone(architecture):
    cache = make_cache(1, 1, 1, 600, 32, dtype=torch.float16)
    policy = policy_for(cache, architecture)
    whole = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    picked = torch.tensor([0, 5, 127, 128, 129, 300, 511, 512, 599])
    some = kvp_ext.score(
        cache.k[..., picked, :], cache.v[..., picked, :], picked, policy=policy, backend="simt"
    )
    assert_same(some, whole[..., picked])
    for name in SCHEDULES:
        with schedule(name):
            again = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
        assert_same(again, whole)


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_padding_gets_no_score(architecture):
    """Slots without a position, and positioned ones past the length, in every chunk of a row."""
    cache = make_cache(1, 3, 1, 700, 8, dtype=torch.float16, pos="head")
    cache.pos[:, 1, :, 30:200] = -1
    cache.pos[:, 2, :, ::3] = -1
    lengths = torch.tensor([601, 129, 300])
    scores = kvp_ext.score(
        cache.k, cache.v, cache.pos,
        policy=policy_for(cache, architecture), lengths=lengths, backend="simt",
    )  # fmt: skip
    assert_same(~scores.isnan(), selection.valid_entries(cache.pos, lengths))


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_entries_that_have_a_score_are_not_read(architecture):
    """K and V of scored entries are NaN, and no score is."""
    cache = make_cache(1, 1, 2, 400, 16, dtype=torch.bfloat16, pos="head")
    policy = policy_for(cache, architecture)
    buffer = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    whole = buffer.clone()
    fresh = torch.rand(400, generator=torch.Generator().manual_seed(0)) < 0.1
    buffer[..., fresh] = torch.nan
    cache.k[..., ~fresh, :] = torch.nan
    cache.v[..., ~fresh, :] = torch.nan
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, 90,
        policy=policy, scores=buffer, return_indices=True, backend="simt",
    )  # fmt: skip
    assert_same(buffer[..., :90], whole.gather(-1, result.kept.long()))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_nan_never_passes(architecture, bad):
    cache = make_cache(1, 1, 1, 140, 32, dtype=torch.bfloat16)
    policy = policy_for(cache, architecture)
    clean = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    cache.k[..., 77, 31] = bad
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    others = torch.arange(140) != 77
    assert_same(scores[..., others], clean[..., others])
    if bad != bad:
        assert bool(scores[..., 77].isnan().all())
        result = kvp_ext.evict_(
            cache.k, cache.v, cache.pos, 139,
            policy=policy, sinks=0, recent=0, return_indices=True, backend="simt",
        )  # fmt: skip
        assert 77 not in result.kept.flatten().tolist()


# ---- refusals ----------------------------------------------------------------------------------


def refuse(message, error=RuntimeError, *, L=1, D=8, dtype=torch.float32, policy=None, **options):
    cache = make_cache(L, 1, 1, 12, D, dtype=dtype)
    before = cache.clone()
    with pytest.raises(error, match=message):
        kvp_ext.evict_(
            cache.k, cache.v, cache.pos, 4,
            policy=policy or policy_for(cache, "small"), backend="simt", **options,
        )  # fmt: skip
    assert_same(cache.k, before.k)
    assert_same(cache.v, before.v)


def test_wider_heads_than_the_kernels_have():
    refuse(r"head_dim.* 264.*256", D=264)


def test_wider_hidden_layers_than_the_kernels_have():
    cache = make_cache(1, 1, 2, 12, 8)
    before = cache.clone()
    with pytest.raises(RuntimeError, match=r"has hidden 257, the CUDA kernels support up to 256"):
        kvp_ext.evict_(
            cache.k, cache.v, cache.pos, 4, policy=policy_of_width(257, "small", 8), backend="simt"
        )
    assert_same(cache.k, before.k)


def test_more_layers_than_a_launch_takes():
    refuse(r"n_layers is 129, the CUDA kernels support up to 128", L=129)


def test_a_policy_of_another_format():
    cache = make_cache(1, 1, 1, 12, 64, dtype=torch.float16)
    policy = policy_for(cache, "small")
    weights, positions = policy.fragments(torch.bfloat16)
    layer = [12]
    for t in (cache.k[0], cache.v[0]):
        layer += [t.data_ptr(), *t.stride()]
    pos = cache.pos.expand(1, 1, 12)
    scores = torch.empty(1, 1, 12)
    layer += [pos.data_ptr(), 0, 0, 1, 1, scores.data_ptr(), *scores.stride(), 1]
    args = _C.Args()
    args.device, args.threads = _C.SIMT, 1
    args.n_layers = args.n_batch = args.n_heads = 1
    args.set_layers(layer)
    args.pos_dtype, args.dtype = _C.INT64, _C.FLOAT16
    args.head_dim_k = args.head_dim_v = 64
    args.lengths = (0, 0, 0, 0, -1)
    args.policy = _C.PolicyView(
        packing.shape_of(policy.folded), _C.BFLOAT16, weights.data_ptr(), positions.data_ptr()
    )
    with pytest.raises(ValueError, match=r"policy.dtype is 2, expected 1 on this device"):
        _C.score(args)


def test_fragments_are_refused_where_no_kernel_exists():
    shape = _C.PolicyShape(
        layers=1, kv_heads=1, head_dim_k=264, head_dim_v=64, hidden=64, position_dim=8,
        position_rows=1, flags=0, norm_eps=0.0,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"head_dim_k.* 264.*256"):
        _C.policy_fragment_bytes(shape)
