"""Budgets that rows share: whole, exact in total, within bounds, the same every time."""

import pytest
import torch

import kvp_ext
from python_ref.allocators import SPANS, allocate, allocators, comparable_span, learned_shares
from python_ref.allocators.allocator import whole_shares
from python_ref.methods import methods
from python_ref.selection import select

NAMES = [*allocators(), "share"]


def named(name, layers, heads):
    """An allocator by name, "share" with shares between 0 and 3."""
    if name != "share":
        return name
    drawn = 3 * torch.rand(2, layers, heads, generator=torch.Generator().manual_seed(1))
    return learned_shares({"0.1": drawn[0].tolist(), "0.6": drawn[1].tolist()})


def random_case(seed):
    g = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=g))

    layers, batch, heads, slots = draw(1, 6), draw(1, 4), draw(1, 5), draw(1, 90)
    scores = torch.randn(layers, batch, heads, slots, generator=g)
    kind = seed % 4
    if kind == 1:
        scores = scores.round()
    elif kind == 2:
        scores[torch.rand(scores.shape, generator=g) < 0.5] = torch.nan
    elif kind == 3:
        scores *= 10.0 ** torch.randint(-30, 30, (layers, 1, heads, 1), generator=g)
    valid = torch.rand(scores.shape, generator=g) < draw(1, 11) / 10
    averages = torch.randint(1, slots + 20, (batch,), generator=g)
    return scores, valid, averages, draw(0, 6), draw(0, 20), draw(0, 8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(60))
def test_budgets_are_exact_in_total_and_within_bounds(name, seed):
    scores, valid, averages, sinks, recent, floor = random_case(seed)
    rules = {"valid": valid, "sinks": sinks, "recent": recent, "floor": floor}
    layers, _, heads, _ = scores.shape
    chosen = named(name, layers, heads)
    budgets = allocate(chosen, scores, averages, **rules)
    held = valid.sum(-1)
    assert budgets.dtype == torch.int64
    assert budgets.shape == held.shape
    assert bool((budgets <= held).all())
    for b, average in enumerate(averages.tolist()):
        assert budgets[:, b].sum() == min(average * layers * heads, held[:, b].sum())
        low = held[:, b].clamp(max=min(max(1, floor, sinks + recent), average))
        assert bool((budgets[:, b] >= low).all())
        # A sequence's budgets do not depend on the others of its batch.
        alone = {**rules, "valid": valid[:, b : b + 1]}
        same = allocate(chosen, scores[:, b : b + 1], average, **alone)
        assert torch.equal(same[:, 0], budgets[:, b])
    assert torch.equal(budgets, allocate(chosen, scores, averages, **rules))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scores", [0.0, torch.nan, torch.inf, -torch.inf])
def test_equal_rows_with_equal_scores(name, scores):
    """Ties are as everywhere: the first row wins, but for what is pinned and safe."""
    same = torch.full((3, 1, 2, 40), scores)
    budgets = allocate(named(name, 3, 2), same, 10, sinks=1, recent=2)
    assert budgets.sum() == 60
    assert int(budgets.min()) >= 3
    if name not in ("adakv", "share"):
        assert budgets.flatten().tolist() == sorted(budgets.flatten().tolist(), reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_models_budgets_are_the_lengths_of_a_model_wide_eviction(seed):
    scores, valid, averages, sinks, recent, _ = random_case(seed)
    averages = averages + sinks + recent
    layers, _, heads, slots = scores.shape
    pos = torch.arange(slots).expand(valid.shape).masked_fill(~valid, -1)
    rules = {"sinks": max(sinks, 1), "recent": recent}
    budgets = allocate("model", scores, averages, valid=valid, **rules)
    rows = valid.any(-1).sum((0, 2))
    total = torch.minimum(averages * layers * heads, valid.sum((0, 2, 3))).maximum(rows)
    whole = select(scores, total, pos=pos, mode="model", **rules)
    if bool((total // rows.clamp(min=1) >= rules["sinks"] + recent).all()):
        assert torch.equal(budgets, whole.lengths.long())
        apart = select(scores, budgets, pos=pos, **rules)
        assert torch.equal(apart.kept, whole.kept)


def test_pyramid_falls_in_equal_steps():
    budgets = allocate("pyramid", torch.randn(5, 1, 2, 1000), 100, sinks=0, recent=0, beta=5)
    assert torch.equal(budgets[:, 0, 0], torch.tensor([180, 140, 100, 60, 20]))
    assert torch.equal(budgets[:, 0, 0], budgets[:, 0, 1])
    even = allocate("pyramid", torch.randn(5, 1, 2, 1000), 100, beta=1)
    assert bool((even == 100).all())


def test_adakv_shares_inside_a_layer():
    scores = torch.randn(3, 1, 2, 400)
    scores[:, :, 0] += 100  # head 0 holds all of the best
    budgets = allocate("adakv", scores, 100, sinks=0, recent=0)
    assert bool((budgets.sum(-1) == 200).all())
    # 0.2 of the even part and 0.8 of what it wins: the floor of one entry aside.
    assert torch.equal(budgets[0, 0], torch.tensor([179, 21]))
    # Pins of 20 are safe: 0.2 of 100 and 0.8 of 20, and of the 160 entries that are won.
    pinned = allocate("adakv", scores, 100, sinks=4, recent=16)
    assert torch.equal(pinned[0, 0], torch.tensor([164, 36]))
    even = allocate("adakv", scores, 100, sinks=0, recent=0, safeguard=1.0)
    assert bool((even == 100).all())


def test_learned_shares_are_those_of_the_ratio_and_between_ratios():
    shares = learned_shares({"0.4": [[1.5, 0.5]], "0.1": [[0.5, 1.5]]})
    scores = torch.randn(1, 1, 2, 1000)
    for budget, expected in (
        (400, [600, 200]),
        (100, [50, 150]),
        (200, [200, 200]),  # in the middle of the logarithms of 0.1 and 0.4
        (50, [25, 75]),
        (600, [900, 300]),
        (800, [1000, 600]),  # no row gets more than it holds
    ):
        budgets = allocate(shares, scores, budget, sinks=0, recent=0)
        assert budgets.flatten().tolist() == expected
    # The ratio is of what the sequence holds, not of its slots.
    valid = torch.arange(1000).expand(scores.shape) < 250
    budgets = allocate(shares, scores, 100, valid=valid, sinks=0, recent=0)
    assert budgets.flatten().tolist() == [150, 50]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r"ratios \[\], expected different"),
        ({"0": [[1.0]]}, r"ratios \[0.0\], expected different ones in \(0, 1\]"),
        ({"0.5": [[1.0]], "0.50": [[1.0]]}, r"ratios \[0.5, 0.5\], expected different"),
        ({"half": [[1.0]]}, "half"),
        ({"0.5": [[1.0]], "0.25": [[1.0, 2.0]]}, r"expected \{ratio: \[L\]\[H\]\} of one size"),
        ({"0.5": [1.0]}, r"numbers of shape \[1\] at each ratio"),
        ({"0.5": [[-1.0]]}, "of at least 0"),
        ({"0.5": [[float("nan")]]}, "expected finite"),
        (None, "expected {ratio"),
    ],
)
def test_malformed_shares_are_told(table, message):
    with pytest.raises(ValueError, match=message):
        learned_shares(table)


def test_shares_of_another_model_are_told():
    shares = learned_shares({"0.5": [[1.0, 1.0]]})
    with pytest.raises(ValueError, match=r"'share' is for \[L, H\] = \[1, 2\], expected \[2, 2\]"):
        allocate(shares, torch.randn(2, 1, 2, 30), 25)


def test_every_method_says_how_far_its_scores_compare():
    assert {method.compares for method in methods().values()} == set(SPANS)
    assert comparable_span("gate") == "model"
    assert comparable_span("kvp") == "row"
    assert comparable_span("kvp", calibrated=True) == "model"
    assert comparable_span("knorm") == comparable_span("no such") == "row"
    assert comparable_span("snapkv") == "model"
    assert {one.compares for one in allocators().values()} <= {"", *SPANS}


def test_what_a_short_row_cannot_hold_goes_to_the_others():
    valid = torch.ones(2, 1, 2, 50, dtype=torch.bool)
    valid[0, 0, 0, 5:] = False
    budgets = allocate("uniform", torch.randn(2, 1, 2, 50), 20, valid=valid)
    assert budgets.flatten().tolist() == [5, 25, 25, 25]


def test_budgets_evict():
    """Any scores, in the kernels: rows end with what they were given."""
    k, v = torch.randn(2, 3, 1, 2, 60, 8)
    scores = torch.randn(3, 1, 2, 60)
    for name in NAMES:
        budgets = allocate(named(name, 3, 2), scores, 25, sinks=2, recent=3)
        evicted = kvp_ext.evict_(
            k.clone(), v.clone(), torch.arange(60), budgets,
            scores=scores.clone(), sinks=2, recent=3,
        )  # fmt: skip
        assert torch.equal(evicted.lengths.long(), budgets)


@pytest.mark.parametrize("seed", range(30))
def test_whole_shares_are_near_the_wishes(seed):
    g = torch.Generator().manual_seed(seed)
    shape = (4, 3)
    high = torch.randint(0, 100, shape, generator=g)
    low = (high * torch.rand(shape, generator=g) * 0.5).long()
    total = int(torch.randint(int(low.sum()), int(high.sum()) + 1, (), generator=g))
    wished = torch.rand(shape, generator=g) * (torch.rand(shape, generator=g) < 0.7)
    shares = whole_shares(wished, low, high, total)
    assert shares.sum() == total
    assert bool(((shares >= low) & (shares <= high)).all())
    # Rows within their bounds stand to each other as their wishes do.
    free = (shares > low) & (shares < high) & (wished > 0)
    if int(free.sum()) > 1:
        per_wish = shares[free] / wished[free]
        slack = 1.0 / wished[free]
        assert bool((per_wish - slack <= (per_wish + slack).min() + 1e-6).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"allocator": "fair"}, "allocator: got 'fair', expected one of adakv"),
        ({"budget": 0}, "budget: got 0"),
        ({"floor": -1}, "floor: got -1"),
        ({"sinks": -1}, "sinks: got -1"),
        ({"slope": 2}, r"options: got \['slope'\], expected any of \[\] of 'uniform'"),
        ({"allocator": "pyramid", "beta": 0.5}, "beta: got 0.5"),
        ({"allocator": "adakv", "safeguard": 1.5}, "safeguard: got 1.5"),
        ({"scores": torch.zeros(3, 4)}, r"scores: got torch.float32 of shape \[3, 4\]"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"allocator": "uniform", "scores": torch.zeros(1, 1, 2, 5), "budget": 3} | change
    with pytest.raises(ValueError, match=message):
        allocate(**arguments)
