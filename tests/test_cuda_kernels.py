"""The CUDA kernels on the host layer: what only they can get wrong.

What every backend must do is tested on "simt" beside the others, in one schedule. Here are all
schedules, shapes around the kernels' tiles, memory at the edges of rows, and what they refuse.
"""

import itertools
import math

import pytest
import torch
from helpers import (
    DTYPES,
    assert_evicted,
    assert_same,
    assert_scores,
    expected_eviction,
    make_cache,
    per_head_pos,
    random_scores,
)
from simt import SCHEDULES, SEVERAL_THREADS, needs_simt, schedule

import kvp_ext
from kvp_ext import _C, packing
from kvp_ext._backends.native import NativeBackend
from python_ref import fold, selection

pytestmark = needs_simt

# Of bytes that no kernel may write: as a score it is NaN, as a key it is above all others.
CANARY = 0xFF

MODES = ("per_head", "union", "model")
ORDERS = ("stable", "any")
# A block reads 2,048 slots at a time; its chunk is up to 512 (wide policies) or 1,024 (narrow).
T = 2051
# Budget of a row, sinks and recent entries in it: cuts at both ends and between, with no pins, with
# a few and with most of the budget pinned.
RULES = [
    (0, 0, 0),
    (1, 4, 16),
    (T // 3, 0, 0),
    (T // 3, 4, 16),
    (2 * T // 3, 1000, 50),
    (T - 1, 0, 0),
    (T, 4, 16),
]


@pytest.fixture(autouse=True)
def fresh_workspaces(monkeypatch):
    """Every call finds garbage in its workspace and nothing of it past its end."""
    guards = []

    def fresh(self, size, device):
        memory = torch.full((size + 64,), CANARY, dtype=torch.uint8)
        guards.append(memory[size:])
        return memory[:size]

    monkeypatch.setattr(NativeBackend, "_workspace", fresh)
    yield
    for guard in guards:
        assert bool((guard == CANARY).all())


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
    for budget, sinks, recent in RULES:
        if mode == "model":  # of which each of the four rows keeps one entry at least
            budget = max(4, 4 * budget - 1)
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
    for name in [*SCHEDULES, *[SEVERAL_THREADS] * 3]:
        cache = make_cache(2, 1, 2, 300, 32, dtype=torch.bfloat16, pos="head")
        buffer = torch.full((2, 1, 2, 300), torch.nan)
        policy = policy_for(cache, architecture)
        with schedule(name):
            result = kvp_ext.evict_(
                cache.k, cache.v, cache.pos, 400 if mode == "model" else 100,
                policy=policy, scores=buffer, mode=mode, return_indices=True, backend="simt",
            )  # fmt: skip
        found.append((result.lengths, result.kept, cache.pos, cache.k, cache.v, buffer))
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert_same(mine, theirs)


def scattered(t, offset, gap, token_major):
    """A copy of `t` `[B, H, T, ...]` in storage with other bytes around and between its slots."""
    channels = t[..., None] if t.dim() == 3 else t
    B, H, n, D = channels.shape
    shape = (B, n + 1, H, D + gap) if token_major else (B, H, n + 1, D + gap)
    storage = torch.empty(offset + math.prod(shape), dtype=t.dtype)
    storage.view(torch.uint8).fill_(CANARY)
    whole = storage[offset:].view(shape)
    view = (whole.transpose(1, 2) if token_major else whole)[:, :, :n, :D]
    view.copy_(channels)
    return view.squeeze(-1) if t.dim() == 3 else view


def bytes_of(t):
    """All of the storage that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("token_major", [False, True])
@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("gap", [0, 1, 8])
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_but_the_survivors_slots_is_written(dtype, token_major, offset, gap, order):
    """Every byte of the storages, of K and V, positions and scores of any alignment."""
    B, H, n, keep = 1, 2, 150, 60
    layout = (offset, gap, token_major)
    cache = make_cache(1, B, H, n, 24, 20, dtype=dtype, pos="head")
    scores = random_scores(1, B, H, n)
    want = expected_eviction(cache, scores, keep, sinks=1, recent=1, order=order)
    given = [scattered(t[0], *layout) for t in (cache.k, cache.v, cache.pos, scores)]
    expected = [scattered(t[0], *layout) for t in (cache.k, cache.v, cache.pos, scores)]
    for b, h in itertools.product(range(B), range(H)):
        survivors = (want.k[0][b][h], want.v[0][b][h], want.pos[0][b][h])
        moved = scores[0, b, h, want.kept[0, b, h, :keep].long()]
        for to, rows in zip(expected, (*survivors, moved), strict=True):
            to[b, h, :keep] = rows
        expected[2][b, h, keep:] = -1
        expected[3][b, h, keep:] = torch.nan
    k, v, pos, buffer = ([t] for t in given)
    kvp_ext.evict_(
        k, v, pos, keep, scores=buffer, sinks=1, recent=1, order=order, backend="simt"
    )  # fmt: skip
    for mine, theirs in zip(given, expected, strict=True):
        assert_same(bytes_of(mine), bytes_of(theirs))


# ---- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "dims",
    [(1, 1), (7, 3), (17, 33), (33, 17), (40, 64), (64, 192), (144, 176), (208, 224), (255, 240)],
)
@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_scores_of_odd_head_dims(architecture, dims, dtype):
    cache = make_cache(1, 2, 2, 35, *dims, dtype=dtype)
    policy = policy_for(cache, architecture)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    assert_scores(scores, float64_scores(policy, cache), "simt", dtype)


def policy_of(
    hidden, D=48, Dv=48, *, gains=False, norms=False, position_dim=16, shared=False, heads=2
):
    """A random policy of any width and form, scaled so that scores are of size 1."""
    shapes = fold.folded_tensor_shapes(D, Dv, hidden, position_dim, gains=gains, norms=norms)
    g = torch.Generator().manual_seed(hidden)

    def draw(name, shape):
        if name.endswith(".offset"):
            return torch.rand(1, heads, *shape, generator=g) + 0.5
        scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.3
        return torch.randn(1, heads, *shape, generator=g) * scale + name.startswith("norm")

    lead = () if shared else (1, heads)
    return kvp_ext.Policy(
        fold.FoldedPolicy(
            layers=1, kv_heads=heads, head_dim_k=D, head_dim_v=Dv, hidden=hidden,
            position_dim=position_dim, position_rows=30, gains=gains, norms=norms, norm_eps=1e-3,
            tensors={name: draw(name, shape) for name, shape in shapes.items()},
            positions=torch.randn(*lead, 30, position_dim, generator=g),
        )
    )  # fmt: skip


@pytest.mark.parametrize("hidden", [1, 16, 33, 48, 64, 65, 96, 128, 160, 255, 256])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("gains", [False, True])
def test_scores_of_any_hidden_width(gains, norms, hidden):
    cache = make_cache(1, 1, 2, 40, 48, dtype=torch.float16)
    policy = policy_of(hidden, gains=gains, norms=norms)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    assert_scores(scores, float64_scores(policy, cache), "simt", torch.float16)


@pytest.mark.parametrize("position_dim", [0, 1, 31, 33, 256])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden", [48, 96])
def test_scores_of_any_position_table(hidden, shared, position_dim):
    cache = make_cache(1, 2, 2, 40, 8, dtype=torch.float16)
    policy = policy_of(hidden, 8, 8, position_dim=position_dim, shared=shared)
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    assert_scores(scores, float64_scores(policy, cache), "simt", torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("token_major", [False, True])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("gap", [0, 1, 4])
@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_scores_do_not_depend_on_where_entries_lie(architecture, dtype, token_major, offset, gap):
    """With 4 channels between rows these lie at multiples of 16 bytes, and NaN follows them."""
    cache = make_cache(1, 2, 2, 20, 44, 20, dtype=dtype)
    policy = policy_for(cache, architecture)
    k, v = (scattered(t[0], offset, gap, token_major) for t in (cache.k, cache.v))
    scores = kvp_ext.score([k], [v], cache.pos, policy=policy, backend="simt")
    expected = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    assert_same(scores, expected)


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_a_score_depends_on_its_entry_alone(architecture):
    cache = make_cache(1, 2, 1, 600, 32, dtype=torch.float16)
    policy = policy_for(cache, architecture)

    def score(k, v, pos):
        return kvp_ext.score(k, v, pos, policy=policy, backend="simt")

    whole = score(cache.k, cache.v, cache.pos)
    picked = torch.tensor([0, 5, 127, 128, 129, 300, 511, 512, 599])
    assert_same(score(cache.k[..., picked, :], cache.v[..., picked, :], picked), whole[..., picked])
    assert_same(score(cache.k[:, 1:], cache.v[:, 1:], cache.pos), whole[:, 1:])
    for name in SCHEDULES:
        with schedule(name):
            again = score(cache.k[:, :1], cache.v[:, :1], cache.pos)
        assert_same(again, whole[:, :1])


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
@pytest.mark.parametrize("mode", MODES)
def test_entries_that_have_a_score_are_not_read(mode, architecture):
    """K and V of scored entries are NaN, and no score is."""
    n = 300
    cache = make_cache(1, 1, 2, n, 16, dtype=torch.bfloat16, pos="head")
    policy = policy_for(cache, architecture)
    buffer = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    whole = buffer.clone()
    fresh = torch.rand(n, generator=torch.Generator().manual_seed(0)) < 0.1
    buffer[..., fresh] = torch.nan
    cache.k[..., ~fresh, :] = torch.nan
    cache.v[..., ~fresh, :] = torch.nan
    budget = 180 if mode == "model" else 90
    rules = {"sinks": 4, "recent": 16, "mode": mode}
    want = selection.select(whole, budget, pos=cache.pos, **rules)
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, budget,
        policy=policy, scores=buffer, return_indices=True, backend="simt", **rules,
    )  # fmt: skip
    assert_same(result.lengths, want.lengths)
    for head in range(2):
        kept = want.kept[0, 0, head, : want.lengths[0, 0, head]].long()
        assert_same(buffer[0, 0, head, : len(kept)], whole[0, 0, head, kept])
        assert bool(buffer[0, 0, head, len(kept) :].isnan().all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_rows_with_holes_are_scored_where_their_scores_matter(mode, spare):
    """Budgets around the number of entries, where the slots that tell it quickly hold none.

    A score that the caller gave stays, whether the row's others are computed or not.
    """
    n = 300
    cache = make_cache(2, 2, 2, n, 8, dtype=torch.float16, pos="head")
    cache.pos[:, 1, :, 20:230] = -1
    lengths = torch.tensor([n, 85])
    valid = selection.valid_entries(cache.pos, lengths)
    count = valid.sum(-1, dtype=torch.int32)
    budget = count[:, 1].sum() + spare if mode == "model" else count[0, 1, 0] + spare
    policy = policy_for(cache, "small")
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    rules = {"lengths": lengths, "sinks": 2, "recent": 3, "mode": mode}
    want = expected_eviction(cache, scores, int(budget), **rules)
    buffer = torch.full_like(scores, torch.nan)
    buffer[..., 9] = scores[..., 9]
    given = buffer.clone()
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, int(budget),
        policy=policy, scores=buffer, return_indices=True, backend="simt", **rules,
    )  # fmt: skip
    assert_evicted(cache, result, want)
    for row in itertools.product(range(2), repeat=3):
        n_kept = int(want.lengths[row])
        rows = (slice(None), row[1]) if mode == "model" else row  # that share a budget
        cut = int(want.lengths[rows].sum()) < int(count[rows].sum())
        kept = want.kept[row][:n_kept].long()
        assert_same(buffer[row][:n_kept], (scores if cut else given)[row][kept])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("channel", [0, 13, 31])
@pytest.mark.parametrize("of", ["k", "v"])
@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_what_is_not_finite_spoils_its_entry_alone(architecture, of, channel, bad):
    """NaN gives NaN, infinity what the definition gives; a NaN is never kept over a number."""
    cache = make_cache(1, 1, 1, 140, 32, dtype=torch.bfloat16)
    policy = policy_for(cache, architecture)
    clean = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    spoilt = torch.tensor([3, 77, 139])
    getattr(cache, of)[..., spoilt, channel] = bad
    scores = kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend="simt")
    others = torch.ones(140, dtype=torch.bool)
    others[spoilt] = False
    assert_same(scores[..., others], clean[..., others])
    assert_same(scores.isnan(), float64_scores(policy, cache).isnan())
    if bad != bad:
        assert bool(scores[..., spoilt].isnan().all())
        result = kvp_ext.evict_(
            cache.k, cache.v, cache.pos, 138,
            policy=policy, sinks=0, recent=0, return_indices=True, backend="simt",
        )  # fmt: skip
        # Of the three the one in the lowest slot.
        assert result.kept.flatten().tolist() == [i for i in range(140) if i not in (77, 139)]


# ---- refusals ----------------------------------------------------------------------------------


def refuse(message, *, L=1, D=8, Dv=None, policy=None, architecture="small"):
    cache = make_cache(L, 1, 1, 12, D, Dv, pos="head")
    before = cache.clone()
    scores = torch.full((L, 1, 1, 12), torch.nan)
    with pytest.raises(RuntimeError, match=message):
        kvp_ext.evict_(
            cache.k, cache.v, cache.pos, 4,
            policy=policy or policy_for(cache, architecture), scores=scores, backend="simt",
        )  # fmt: skip
    for now, then in ((cache.k, before.k), (cache.v, before.v), (cache.pos, before.pos)):
        assert_same(now, then)
    assert bool(scores.isnan().all())


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_wider_heads_than_the_kernels_have(architecture):
    supported = "the CUDA kernels support up to 256"
    refuse(f"policy has head_dim_k 264, {supported}", D=264, Dv=8, architecture=architecture)
    refuse(f"policy has head_dim_v 257, {supported}", D=8, Dv=257, architecture=architecture)


@pytest.mark.parametrize(
    ("change", "what"),
    [({"hidden": 257}, "hidden 257"), ({"position_dim": 260}, "position_dim 260")],
)
def test_wider_policies_than_the_kernels_have(change, what):
    policy = policy_of(**{"hidden": 64, "D": 8, "Dv": 8, "heads": 1} | change)
    refuse(f"policy has {what}, the CUDA kernels support up to 256", policy=policy)


def test_more_layers_than_a_launch_takes():
    refuse(r"n_layers is 129, the CUDA kernels support up to 128", L=129)


def test_more_slots_than_a_launch_counts():
    """In all layers of a sequence; nothing lies at the addresses, since nothing is read."""
    n, slots, address = 8, 2**28, 2**40
    lengths, kept = torch.zeros(n, dtype=torch.int32), torch.zeros(n, dtype=torch.int32)
    args = _C.Args()
    args.device, args.threads = _C.SIMT, 1
    args.n_layers, args.n_batch, args.n_heads = n, 1, 1
    args.dtype, args.pos_dtype = _C.FLOAT32, _C.INT64
    flat = []
    for layer in range(n):
        scores = [address + layer * slots * 4, slots, slots, 1, 1]
        flat += [slots, *[0] * 15, *scores]  # no K, V and positions
    args.set_layers(flat)
    args.lengths, args.budget, args.capacity = (0, 0, 0, 0, -1), (0, 0, 0, 0, 1), 1
    args.new_lengths, args.kept = lengths.data_ptr(), kept.data_ptr()
    args.workspace_bytes = _C.workspace_bytes(_C.OP_SELECT, args)
    args.workspace = address + n * slots * 4
    with pytest.raises(RuntimeError, match=r"2147483648 slots.*is beyond the CUDA kernels"):
        _C.select(args)


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
