from itertools import permutations

import pytest
import torch

from python_ref.training.objectives import (
    LEVEL_WEIGHT,
    exact_plackett_luce,
    expected_cost,
    log_utility_regression,
)
from python_ref.utility import cost, optimal_cost


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_the_expected_cost_is_the_mean_over_all_rankings(n):
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn(2, 3, n, dtype=torch.float64, generator=generator)
    utility = torch.rand(2, 3, n, dtype=torch.float64, generator=generator)
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for order in permutations(range(n)):
        index = torch.tensor(order).expand(2, 3, n)
        ordered = scores.gather(-1, index)
        # Plackett-Luce: each rank is a softmax choice among those left.
        chance = torch.stack([ordered[..., r:].log_softmax(-1)[..., 0] for r in range(n)])
        expected += chance.sum(0).exp() * cost(utility, index)
    torch.testing.assert_close(expected_cost(scores, utility), expected / optimal_cost(utility))


def test_a_confident_right_ranking_costs_one():
    utility = torch.tensor([[[0.1, 0.5, 0.2, 0.0]]])
    assert exact_plackett_luce(1e4 * utility, utility).item() == pytest.approx(1.0)
    assert exact_plackett_luce(-1e4 * utility, utility).item() > 1.5


def test_without_any_utility_the_cost_is_finite():
    zero = torch.zeros(1, 1, 3, requires_grad=True)
    loss = exact_plackett_luce(zero, torch.zeros(1, 1, 3))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(zero.grad).all()


def test_regression_is_on_the_logarithm_above_a_floor():
    utility = torch.tensor([0.0, 0.9])
    perfect = torch.log(utility + 0.1)
    assert log_utility_regression(perfect, utility, 0.1).item() == pytest.approx(0.0, abs=1e-12)
    tilted = perfect + torch.tensor([1.0, -1.0])
    assert log_utility_regression(tilted, utility, 0.1).item() == pytest.approx(1.0)


def test_regression_hardly_minds_a_constant_of_the_context():
    utility = torch.rand(2, 3, 4, 50, generator=torch.Generator().manual_seed(0))
    shifted = torch.log(utility + 0.1) + torch.tensor([1.0, -1.0, 1.0, 1.0])[:, None]
    loss = log_utility_regression(shifted, utility, 0.1)
    assert loss.item() == pytest.approx(LEVEL_WEIGHT, rel=1e-4)
