from itertools import combinations, permutations

import pytest
import torch

from python_ref.training import objectives
from python_ref.training.objectives import (
    FLOOR,
    LEVEL_WEIGHT,
    Batch,
    PairSum,
    expected_cost,
    ideal_cost,
    listmle,
    listwise,
    pairwise,
    plackett_luce,
    ranking_cost,
    regression,
    regression_absolute,
    regression_utility,
    rloo,
    rloo_batch,
    softsort,
)
from python_ref.utility import cost, cost_of_scores, optimal_cost

NAMES = list(objectives.objectives())


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, dtype=torch.float64, generator=generator)
    utility = torch.rand(*shape, dtype=torch.float64, generator=generator)
    return scores, utility


def chance_of(scores, order):
    """Plackett-Luce, factor by factor: each rank is a softmax choice among those left."""
    left, chance = list(order), torch.ones(())
    for token in order:
        chance = chance * scores[token].exp() / scores[left].exp().sum()
        left.remove(token)
    return chance


def gumbel(seed):
    """Noise for ``Batch``: seeded."""
    generator = torch.Generator().manual_seed(seed)

    def noise_like(scores):
        def noise(count):
            shape = (count, *scores.shape)
            return -torch.empty(shape, dtype=scores.dtype).exponential_(generator=generator).log()

        return noise

    return noise_like


def gradient(loss, scores, *arguments, **options):
    scores = scores.clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(scores, *arguments, **options).sum(), scores)
    return result


# Plackett-Luce


def test_log_probabilities_are_those_of_the_direct_product():
    scores, _ = draw(5)
    total = 0.0
    for order in permutations(range(5)):
        log_chance = plackett_luce(scores, torch.tensor(order)).sum()
        assert log_chance.exp().item() == pytest.approx(chance_of(scores, order).item())
        total += log_chance.exp().item()
    assert total == pytest.approx(1.0)


def test_log_probabilities_are_finite_for_scores_far_apart():
    scores = torch.tensor([0.0, 2000.0, -2000.0])
    ranks = plackett_luce(scores, torch.tensor([2, 1, 0]))
    assert ranks.tolist() == [-4000.0, 0.0, 0.0]


def test_gumbel_sort_draws_from_plackett_luce():
    scores, _ = draw(3, seed=1)
    noise = gumbel(0)(scores)(40_000)
    drawn = (scores + noise).argsort(dim=-1, descending=True)
    for order in permutations(range(3)):
        share = (drawn == torch.tensor(order)).all(dim=-1).double().mean().item()
        chance = chance_of(scores, order).item()
        assert share == pytest.approx(chance, abs=5 * (chance * (1 - chance) / 40_000) ** 0.5)


# Costs


def test_costs_without_weights_are_the_papers():
    scores, utility = draw(2, 3, 9)
    ones = torch.ones_like(scores)
    order = scores.argsort(dim=-1, descending=True)
    torch.testing.assert_close(ranking_cost(order, utility, ones), cost(utility, order))
    torch.testing.assert_close(ideal_cost(utility, ones), optimal_cost(utility))


@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_the_expected_cost_is_the_mean_over_all_rankings(n):
    scores, utility = draw(2, n, seed=n)
    for row in range(2):
        expected = sum(
            chance_of(scores[row], order) * cost(utility[row], torch.tensor(order))
            for order in permutations(range(n))
        )
        actual = expected_cost(scores[row], utility[row]) * optimal_cost(utility[row])
        assert actual.item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_gradient_of_the_expected_cost_is_right():
    scores, utility = draw(3, 7)
    weight = torch.rand(3, 7, dtype=torch.float64) + 0.5
    assert torch.autograd.gradcheck(
        lambda s: expected_cost(s, utility, Batch(weight)), scores.requires_grad_()
    )
    s_i, s_j = scores[:, :4].detach(), scores[:, 4:].detach()
    assert torch.autograd.gradcheck(
        lambda a, b: PairSum.apply(a, utility[:, :4], b, weight[:, 4:]),
        (s_i.requires_grad_(), s_j.requires_grad_()),
    )


def test_pairs_are_summed_alike_in_blocks_of_any_size(monkeypatch):
    scores, utility = draw(5, 8)
    whole = expected_cost(scores, utility), gradient(expected_cost, scores, utility)
    for block in (1, 2 * 64, 3 * 64):
        monkeypatch.setattr(PairSum, "BLOCK", block)
        torch.testing.assert_close(expected_cost(scores, utility), whole[0])
        torch.testing.assert_close(gradient(expected_cost, scores, utility), whole[1])


def test_subsampled_pairs_are_unbiased_in_value_and_gradient():
    scores, utility = draw(6)
    values, gradients = [], []
    for chosen in combinations(range(6), 2):
        # Noise that makes exactly these two the largest.
        noise = torch.zeros(6, dtype=torch.float64).index_fill(0, torch.tensor(chosen), 1.0)
        batch = Batch(gumbel=lambda count, noise=noise: noise.expand(count, 6))
        values.append(expected_cost(scores, utility, batch, others=2))
        gradients.append(gradient(expected_cost, scores, utility, batch, others=2))
    exact = expected_cost(scores, utility), gradient(expected_cost, scores, utility)
    torch.testing.assert_close(torch.stack(values).mean(0), exact[0])
    torch.testing.assert_close(torch.stack(gradients).mean(0), exact[1])
    assert (torch.stack(values) - exact[0]).abs().max() > 0.05
    all_of_them = expected_cost(scores, utility, others=6)
    torch.testing.assert_close(all_of_them, exact[0])


def test_a_confident_right_ranking_costs_one():
    utility = torch.tensor([0.1, 0.5, 0.2, 0.0])
    assert expected_cost(1e4 * utility, utility).item() == pytest.approx(1.0)
    worst = cost_of_scores(-utility, utility) / optimal_cost(utility)
    assert expected_cost(-1e4 * utility, utility).item() == pytest.approx(worst.item())


@pytest.mark.parametrize("name", NAMES)
def test_without_any_utility_losses_and_gradients_are_finite(name):
    objective = objectives.objectives()[name]
    scores = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = objective.loss(scores, torch.zeros(2, 3, 4))
    assert loss.shape == (2, 3)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(scores.grad).all()


# REINFORCE


@pytest.mark.parametrize(
    ("loss", "options"), [(rloo, {"rankings": 3}), (rloo, {"rankings": 2}), (rloo_batch, {})]
)
def test_the_expected_gradient_of_reinforce_is_the_exact_one(loss, options):
    copies = 20_000
    scores, utility = draw(5, seed=3)
    exact = gradient(expected_cost, scores, utility) / 5
    many = scores.expand(copies, 5)
    batch = Batch(gumbel=gumbel(0)(many))
    sampled = gradient(loss, many, utility.expand(copies, 5), batch, normalise=False, **options)
    error = sampled.std(dim=0) / copies**0.5
    assert (error < 0.1 * exact.abs().max()).all()
    assert ((sampled.mean(dim=0) - exact).abs() < 4.5 * error).all()


def test_rloo_is_the_papers_formula():
    scores, utility = draw(2, 3, 6)  # two heads, three items
    noise = gumbel(1)(scores)(4)
    actual = rloo(scores, utility, Batch(gumbel=lambda count: noise[:count]), rankings=4)
    for head in range(2):
        rewards, chances = torch.zeros(3, 4), torch.zeros(3, 4)
        for item in range(3):
            s, a = scores[head, item], utility[head, item]
            for k in range(4):
                order = (s + noise[k, head, item]).argsort(descending=True)
                rewards[item, k] = -cost(a, order) / optimal_cost(a)
                chances[item, k] = chance_of(s, order.tolist()).log() / 6
        advantage = torch.stack(
            [rewards[:, k] - rewards[:, [j for j in range(4) if j != k]].mean(1) for k in range(4)],
            dim=1,
        )
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
        assert advantage.abs().max() > 2  # so that the clamp is seen
        expected = -(advantage.clamp(-2, 2) * chances).mean(dim=1)
        torch.testing.assert_close(actual[head], expected.to(actual.dtype), rtol=1e-4, atol=1e-5)


def test_the_batch_form_takes_the_other_items_as_baseline():
    scores, utility = draw(3, 5)
    noise = gumbel(2)(scores)(1)
    batch = Batch(gumbel=lambda count: noise)
    rewards, chances = [], []
    for item in range(3):
        order = (scores[item] + noise[0, item]).argsort(descending=True)
        rewards.append(-cost(utility[item], order) / optimal_cost(utility[item]))
        chances.append(chance_of(scores[item], order.tolist()).log() / 5)
    total = sum(rewards)
    expected = [-(r - (total - r) / 2) * c for r, c in zip(rewards, chances, strict=True)]
    actual = rloo_batch(scores, utility, batch, normalise=False)
    torch.testing.assert_close(actual, torch.stack(expected))


def test_rewards_end_at_minus_200():
    utility = torch.zeros(500).index_fill(0, torch.tensor([499]), 1.0)
    noise = torch.arange(500.0, 0.0, -1.0)  # ranks the only useful token last: C / C* = 500
    batch = Batch(gumbel=lambda count: noise.expand(count, 500))
    reward, _ = objectives._sampled_rankings(torch.zeros(500), utility, batch, 1)
    assert reward.item() == -200.0


def test_reinforce_needs_something_to_compare_with():
    scores, utility = draw(1, 4)
    with pytest.raises(ValueError, match="rankings: got 1, expected at least 2"):
        rloo(scores, utility, rankings=1)
    with pytest.raises(ValueError, match="items: got 1 in a batch"):
        rloo_batch(scores, utility)


# Regression


def test_regression_is_on_the_logarithm_above_a_floor():
    utility = torch.tensor([0.0, 0.9])
    perfect = torch.log(utility + 0.1)
    assert regression(perfect, utility, floor=0.1).item() == pytest.approx(0.0, abs=1e-12)
    assert regression_absolute(perfect, utility, floor=0.1).item() == 0.0
    tilted = perfect + torch.tensor([1.0, -1.0])
    assert regression(tilted, utility, floor=0.1).item() == pytest.approx(1.0)


def test_regression_hardly_minds_a_constant_of_the_context():
    utility = torch.rand(2, 3, 4, 50, generator=torch.Generator().manual_seed(0))
    shifted = torch.log(utility + FLOOR) + torch.tensor([1.0, -1.0, 1.0, 1.0])[:, None]
    expected = torch.full((2, 3, 4), LEVEL_WEIGHT)
    torch.testing.assert_close(regression(shifted, utility), expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(regression_absolute(shifted, utility), torch.ones(2, 3, 4))


def test_plain_regression_is_in_thousandths():
    utility = torch.tensor([0.001, 0.02])
    assert regression_utility(torch.tensor([0.0, 20.0]), utility).item() == pytest.approx(0.5)


# Learning to rank, by hand


def test_pairwise_by_hand():
    scores, utility = draw(4)
    loss, total = 0.0, 0.0
    for i in range(4):
        for j in range(4):
            if utility[i] > utility[j]:
                worth = utility[i] - utility[j]
                loss += worth * torch.log(1 + torch.exp(scores[j] - scores[i]))
                total += worth
    torch.testing.assert_close(pairwise(scores, utility), loss / total)


def test_listwise_by_hand():
    scores, utility = draw(4)
    expected = torch.nn.functional.cross_entropy(scores, utility / utility.sum())
    torch.testing.assert_close(listwise(scores, utility), expected)


def test_listmle_is_the_likelihood_of_the_ideal_ranking():
    scores, utility = draw(4)
    order = utility.argsort(descending=True).tolist()
    torch.testing.assert_close(listmle(scores, utility), -chance_of(scores, order).log() / 4)


def test_softsort_is_the_cost_itself_when_scores_are_far_apart():
    scores, utility = draw(2, 6)
    expected = cost_of_scores(scores, utility) / optimal_cost(utility)
    torch.testing.assert_close(softsort(scores, utility, temperature=1e-3), expected)
    # Of two tokens, each row chooses its own with chance p; only the second has utility.
    scores, utility = torch.tensor([0.5, 0.0]), torch.tensor([0.0, 1.0])
    p = torch.sigmoid(torch.tensor(0.5))
    torch.testing.assert_close(softsort(scores, utility), 1 * (1 - p) + 2 * p)


# All of them


@pytest.mark.parametrize(
    "loss", [regression, regression_absolute, regression_utility, expected_cost, pairwise, listwise]
)
def test_a_weight_is_a_number_of_copies(loss):
    scores, utility = draw(2, 4)
    copies = torch.tensor([1, 3, 2, 1])
    weighted = loss(scores, utility, Batch(copies.double()))
    repeated = loss(*(x.repeat_interleave(copies, dim=-1) for x in (scores, utility)))
    torch.testing.assert_close(weighted, repeated)


def test_weights_in_the_sampled_and_relaxed_costs():
    scores, utility = draw(4)
    weight = torch.tensor([1.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    order = scores.argsort(descending=True)
    expected = ranking_cost(order, utility, weight) / ideal_cost(utility, weight)
    relaxed = softsort(scores, utility, Batch(weight), temperature=1e-4)
    torch.testing.assert_close(relaxed, expected)
    batch = Batch(weight, gumbel=lambda count: torch.zeros(count, 4))
    reward, _ = objectives._sampled_rankings(scores, utility, batch, 1)
    torch.testing.assert_close(reward, -expected[None])
    by_hand, before = 0.0, 0.0
    for token in order.tolist():
        copies = weight[token]
        by_hand += copies * utility[token] * (before + (copies + 1) / 2)
        before += copies
    torch.testing.assert_close(ranking_cost(order, utility, weight), by_hand)
    ideal = utility.argsort(descending=True)
    chance = torch.stack(
        [
            scores[t] - (weight[ideal[r:]] * scores[ideal[r:]].exp()).sum().log()
            for r, t in enumerate(ideal)
        ]
    )
    expected = -(weight[ideal] * chance).sum() / weight.sum()
    torch.testing.assert_close(listmle(scores, utility, Batch(weight)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_leads_to_the_ideal_ranking(name):
    """The scores of two heads are learned directly, from four equal items a step."""
    objective = objectives.objectives()[name]
    generator = torch.Generator().manual_seed(4)
    utility = torch.tensor([0.03, 0.002, 0.01, 0.0001, 0.02, 0.005]).expand(2, 4, 6)
    scores = torch.randn(2, 1, 6, generator=generator).requires_grad_()
    assert (scores.argsort(-1)[:, 0] != utility.argsort(-1)[:, 0]).any(dim=-1).all()
    optimiser = torch.optim.Adam([scores], lr=0.1)
    noise = gumbel(5)(scores.detach().expand_as(utility))
    for _ in range(500):
        optimiser.zero_grad()
        objective.loss(scores.expand_as(utility), utility, Batch(gumbel=noise)).sum().backward()
        optimiser.step()
    ranked = scores.detach().expand_as(utility)
    ratio = cost_of_scores(ranked, utility) / optimal_cost(utility)
    assert (ratio < 1.01).all()
    if not name.startswith("rloo"):  # which never stops exploring
        assert (ranked.argsort(-1) == utility.argsort(-1)).all()
