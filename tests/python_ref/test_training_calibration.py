"""Scores on one scale, and shares of a budget: against definitions, optima and made-up truths."""

import itertools

import pytest
import torch

from python_ref.agents import PaperAgent, SmallAgent
from python_ref.allocators import allocate, learned_shares
from python_ref.fold import fold, score
from python_ref.training.calibration import (
    LEAST_SPREAD,
    Context,
    calibrate,
    contexts_of,
    fit,
    measure,
    rescaled,
    scores_by,
)
from python_ref.training.objectives import Batch, log_utility, regression
from python_ref.training.shares import STEPS, best_shares, concave, learn_shares, retained
from python_ref.training.traces import Trace

L, H, D = 2, 3, 8


def policy(kind=SmallAgent, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return fold(kind(L, H, D, position_rows=64, generator=generator))


def made_trace(n, seed, splits=None, kind="t"):
    g = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(L, H, n, D, generator=g) for _ in range(2))
    splits = splits or (n,)
    utilities = tuple(torch.rand(L, H, m, generator=g) ** 4 / m for m in splits)
    return Trace(kind, k.half(), v.half(), splits, utilities, torch.zeros(n, dtype=torch.bool))


def told_trace(policy, n, seed, slope, level, noise=0.0):
    """A trace whose log-utility is a map of the policy's scores."""
    trace = made_trace(n, seed)
    g = torch.Generator().manual_seed(seed)
    s = scores_by(policy, trace)
    y = slope[..., None] * s + level[..., None] + noise * torch.randn(s.shape, generator=g)
    utility = (y.exp() - log_utility(torch.zeros(())).exp()).clamp(min=0)
    trace.utilities = (utility,)
    return trace


def random_contexts(seed, count=5):
    g = torch.Generator().manual_seed(seed)
    return [
        Context(
            torch.randn(L, H, n, generator=g) * 3 + i,
            torch.randn(L, H, n, generator=g) - 2 * i,
            1 / (1 + i % 2),
        )
        for i, n in enumerate(range(9, 9 + count))
    ]


def loss(contexts, slope, intercept):
    """The training objective of mapped scores, mean over documents, [L, H]."""
    total = sum(
        c.weight
        * regression(
            slope[..., None] * c.scores.double() + intercept[..., None],
            c.target.double().exp(),
            Batch(),
            floor=0.0,
        )
        for c in contexts
    )
    return total / sum(c.weight for c in contexts)


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_minimises_the_regression_objective(seed):
    contexts = random_contexts(seed)
    # Scores and targets that belong together, so that no slope is at its bound.
    contexts = [Context(c.scores, c.target + 0.8 * c.scores, c.weight) for c in contexts]
    slope, intercept, flat = fit(contexts)
    assert flat == 0
    best = loss(contexts, slope, intercept)
    for a, b in itertools.product((-0.02, 0.0, 0.02), (-0.02, 0.0, 0.02)):
        if (a, b) != (0.0, 0.0):
            assert bool((loss(contexts, slope + a, intercept + b) > best).all())


def test_a_known_map_is_found_and_folded():
    folded = policy()
    g = torch.Generator().manual_seed(5)
    slope, level = torch.rand(L, H, generator=g) + 0.2, torch.randn(L, H, generator=g) - 6
    traces = [told_trace(folded, 40 + seed, seed, slope, level) for seed in range(3)]
    mapped, result = calibrate(folded, traces, sinks=1, recent=2)
    torch.testing.assert_close(result.slope.float(), slope, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(result.intercept.float(), level, rtol=1e-2, atol=1e-2)
    assert result.after.r2 > 0.999
    assert result.after.rank_all > 0.999 > result.before.rank_all
    assert result.before.r2 < 0
    assert result.flat == 0
    trace = traces[0]
    torch.testing.assert_close(
        scores_by(mapped, trace), log_utility(trace.utility), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("kind", [SmallAgent, PaperAgent])
def test_only_the_last_layer_changes_and_rows_are_ranked_as_before(kind):
    folded = policy(kind)
    traces = [made_trace(50, 1, (20, 35, 50)), made_trace(30, 2)]
    mapped, result = calibrate(folded, traces, sinks=2, recent=3)
    changed = {
        name
        for name in folded.tensors
        if not torch.equal(folded.tensors[name], mapped.tensors[name])
    }
    assert changed == {"output.weight", "output.bias"}
    assert all(mapped.tensors[n].dtype == torch.float32 for n in changed)
    assert bool((result.slope > 0).all())
    k, v = torch.randn(2, L, 1, H, 40, D)
    before, after = (score(p, k, v, torch.arange(40)) for p in (folded, mapped))
    expected = result.slope[:, None, :, None] * before + result.intercept[:, None, :, None]
    torch.testing.assert_close(after, expected.float(), rtol=1e-4, atol=1e-5)
    gaps = before.sort(dim=-1).values.diff(dim=-1)
    assert float(gaps.min()) > 1e-6  # so that rounding decides nothing
    assert torch.equal(before.argsort(dim=-1), after.argsort(dim=-1))
    assert result.before.rank_within == pytest.approx(result.after.rank_within)


def test_a_score_that_tells_the_opposite_keeps_its_order():
    contexts = random_contexts(0)
    opposed = [Context(c.scores, -c.scores + 0.1 * c.target, c.weight) for c in contexts]
    slope, _, flat = fit(opposed)
    assert flat == L * H
    assert bool((slope > 0).all())
    spread = torch.cat([(slope[..., None] * c.scores).flatten(-1) for c in opposed], -1).std(-1)
    target = torch.cat([c.target for c in opposed], -1).std(-1)
    torch.testing.assert_close(spread, LEAST_SPREAD * target, rtol=0.5, atol=0.0, check_dtype=False)


@pytest.mark.parametrize("which", ["scores", "target"])
def test_constant_scores_and_utilities(which):
    """Nothing to fit a slope to: the level is right all the same."""
    contexts = random_contexts(1)
    flat = {which: torch.full((L, H, 9), -3.0)}
    other = "target" if which == "scores" else "scores"
    one = Context(**flat, **{other: getattr(contexts[0], other)}, weight=1.0)
    slope, intercept, _ = fit([one])
    assert bool((slope > 0).all())
    mapped = slope[..., None] * one.scores + intercept[..., None]
    torch.testing.assert_close(mapped.mean(-1), one.target.double().mean(-1))
    assert measure([one]).rank_all == pytest.approx(0.0, abs=1e-9 if which == "target" else 1.0)


def test_documents_count_alike_and_pins_do_not_count():
    folded = policy()
    trace = made_trace(40, 3, (20, 30, 40))
    scores = scores_by(folded, trace)
    contexts = contexts_of(trace, scores, 4, 5)
    assert [c.scores.shape[-1] for c in contexts] == [11, 21, 31]
    assert sum(c.weight for c in contexts) == pytest.approx(1)
    assert torch.equal(contexts[1].target, log_utility(trace.utilities[1][..., 4:25]))
    assert len(contexts_of(trace, scores, 20, 9)) == 1
    changed = made_trace(40, 3, (20, 30, 40))
    for utility, n in zip(changed.utilities, changed.splits, strict=True):
        utility[..., :4] = 1.0
        utility[..., n - 5 :] = 1.0
    one, two = (calibrate(folded, [t], sinks=4, recent=5)[1] for t in (trace, changed))
    assert torch.equal(one.slope, two.slope)
    twice = calibrate(folded, [trace, trace], sinks=4, recent=5)[1]
    torch.testing.assert_close(one.intercept, twice.intercept)
    with pytest.raises(ValueError, match="got no context of at least 51 tokens"):
        calibrate(folded, [trace], sinks=40, recent=9)


def test_measures_against_hand_computed_values():
    target = torch.tensor([[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]])
    scores = torch.tensor([[[3.0, 1.0, 2.0], [10.0, 20.0, 30.0]]])
    found = measure([Context(scores, target, 1.0)])
    assert found.rank_within == pytest.approx((-0.5 + 1) / 2)
    # Ranks 3 1 2 4 5 6 against 1 2 3 4 5 6: 1 - 6 (4 + 1 + 1) / (6 * 35)
    assert found.rank_all == pytest.approx(1 - 6 * 6 / 210)
    total = (target - 11).square().sum()
    assert found.r2 == pytest.approx(1 - 6 / float(total))
    assert found.r2_within == pytest.approx(1 - 6 / (2 + 200))
    tied = Context(torch.tensor([[[1.0, 1.0, 2.0]]]), torch.tensor([[[1.0, 2.0, 3.0]]]), 1.0)
    assert measure([tied]).rank_within == pytest.approx(3**0.5 / 2)


def test_rescaling_is_exact_where_powers_of_two_make_it_so():
    folded = policy()
    mapped = rescaled(folded, torch.full((L, H), 4.0), torch.zeros(L, H))
    k, v = torch.randn(2, L, 1, H, 20, D)
    pos = torch.arange(20)
    assert torch.equal(score(mapped, k, v, pos), 4 * score(folded, k, v, pos))


# ---- shares ------------------------------------------------------------------------------------


def test_what_a_row_retains():
    utility = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    scores = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
    by_score = retained(scores, utility, 0, 0)
    quarter = STEPS // 4
    assert by_score.shape == (1, STEPS + 1)
    assert by_score[0, ::quarter].tolist() == pytest.approx([0.0, 0.1, 0.3, 0.6, 1.0])
    assert by_score[0, quarter // 2].item() == pytest.approx(0.05)  # half an entry
    pinned = retained(scores, utility, 0, 2)
    assert pinned[0, ::quarter].tolist() == pytest.approx([0.0, 0.2, 0.5, 0.6, 1.0])


def test_the_least_concave_curve_above():
    curves = torch.rand(3, 2, 40, generator=torch.Generator().manual_seed(0)).cumsum(-1).double()
    hulls = concave(curves)
    assert bool((hulls >= curves - 1e-12).all())
    assert bool((hulls.diff(dim=-1).diff(dim=-1) <= 1e-12).all())
    assert torch.equal(hulls[..., [0, -1]], curves[..., [0, -1]])
    # Least: at its corners it is the curve.
    bends = hulls.diff(dim=-1).diff(dim=-1) < -1e-9
    touching = (hulls[..., 1:-1] - curves[..., 1:-1]).abs() < 1e-12
    assert bool((touching | ~bends).all())
    already = torch.tensor([[[0.0, 3.0, 5.0, 6.0, 6.0]]], dtype=torch.float64)
    assert torch.equal(concave(already), already)


@pytest.mark.parametrize("seed", range(5))
def test_the_shares_are_the_best_of_all(seed):
    g = torch.Generator().manual_seed(seed)
    gains = torch.rand(1, 3, 6, generator=g).sort(dim=-1, descending=True).values
    values = torch.nn.functional.pad(gains.cumsum(-1), (1, 0))[0]
    shares = best_shares(gains, 0.5)
    counts = (shares * 3).round().long()[0].tolist()
    assert sum(counts) == 9
    best = max(
        sum(values[h, c].item() for h, c in enumerate(split))
        for split in itertools.product(range(7), repeat=3)
        if sum(split) == 9
    )
    assert sum(values[h, c].item() for h, c in enumerate(counts)) == pytest.approx(best)


def test_heads_that_look_at_few_entries_get_fewer():
    folded = policy()
    trace = made_trace(64, 0)
    ranked = scores_by(folded, trace).argsort(dim=-1, descending=True).argsort(dim=-1)
    width = torch.tensor([[4.0, 16.0, 32.0], [4.0, 16.0, 32.0]])[..., None]
    trace.utilities = ((-ranked / width).exp(),)
    table = learn_shares(folded, [trace, trace], sinks=0, recent=0, ratios=(0.5, 0.25))
    assert list(table) == ["0.5", "0.25"]
    for rows in table.values():
        shares = torch.tensor(rows)
        assert shares.shape == (L, H)
        assert shares.mean().item() == pytest.approx(1, abs=2e-3)
        # Of equal gains the first layer's come first: a step or two.
        torch.testing.assert_close(shares[0], shares[1], atol=0.05, rtol=0)
        assert bool((shares.diff(dim=-1) > 0).all())
    uniform = learn_shares(folded, [trace], sinks=0, recent=0, ratios=(1.0,))
    assert uniform == {"1.0": [[1.0] * H] * L}
    # They are what the allocator takes, and retain more than equal shares.
    budgets = allocate(learned_shares(table), torch.zeros(L, 1, H, 64), 16, sinks=0, recent=0)
    utility = trace.utility.sort(dim=-1, descending=True).values.cumsum(-1)

    def kept(budgets):
        return utility.gather(-1, budgets[:, 0, :, None] - 1).sum().item()

    assert kept(budgets) > kept(torch.full_like(budgets, 16)) + 0.1


def test_entries_that_must_be_kept_to_reach_others_count():
    """Head 0 ranks eight useless entries before eight good ones; head 1 is steady and better."""
    folded = policy()
    trace = made_trace(64, 0)
    ranked = scores_by(folded, trace).argsort(dim=-1, descending=True).argsort(dim=-1)
    worth = torch.zeros(H, 64)
    worth[0, 8:16] = 0.010
    worth[1, :16] = 0.006
    trace.utilities = (worth.expand(L, H, 64).gather(-1, ranked),)
    table = learn_shares(folded, [trace], sinks=0, recent=0, ratios=(1 / 12,))
    assert table[str(1 / 12)] == [[0.0, 3.0, 0.0]] * L
