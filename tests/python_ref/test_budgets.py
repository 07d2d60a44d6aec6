import numpy as np
import pytest
import torch

from python_ref.budgets import budget_from_ratio, expand_budget, expand_total


@pytest.mark.parametrize(
    ("length", "ratio", "expected"),
    [
        (1000, 0.9, 100),
        (10, 0.55, 5),
        (10, 0.85, 2),
        (100, 0.29, 71),
        (1, 0.99, 1),
        (50, 1.0, 1),
        (7, 0.0, 7),
    ],
)
def test_compression_ratio_is_exact(length, ratio, expected):
    assert budget_from_ratio(length, compression_ratio=ratio) == expected


@pytest.mark.parametrize(
    ("length", "ratio", "expected"),
    [
        (1000, 0.1, 100),
        (5, 0.5, 3),
        (10, 0.35, 4),
        (10, 0.25, 3),
        (10, 0.249, 2),
        (0, 0.5, 1),
        (3, 1e-5, 1),
    ],
)
def test_keep_ratio_rounds_half_up(length, ratio, expected):
    assert budget_from_ratio(length, keep_ratio=ratio) == expected


def test_ratios_of_every_percent_agree():
    for percent in range(101):
        kept = budget_from_ratio(1000, compression_ratio=percent / 100)
        assert kept == max(1, 1000 - 10 * percent)


def test_bad_ratios_are_named():
    with pytest.raises(ValueError, match="keep_ratio, compression_ratio: got None and None"):
        budget_from_ratio(10)
    with pytest.raises(ValueError, match=r"keep_ratio: got 1.5"):
        budget_from_ratio(10, keep_ratio=1.5)
    with pytest.raises(ValueError, match="compression_ratio: got nan"):
        budget_from_ratio(10, compression_ratio=float("nan"))
    with pytest.raises(ValueError, match="length: got -1"):
        budget_from_ratio(-1, keep_ratio=0.5)


def test_expand_budget():
    assert expand_budget(5, 2, 3, 4).eq(5).all()
    assert expand_budget([1, 2], 2, 3, 4)[:, 1, 2].tolist() == [1, 2]
    per_head = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    expanded = expand_budget(per_head, 2, 3, 4)
    assert expanded.dtype == torch.int64
    assert torch.equal(expanded[:, 2], per_head.long())
    per_row = torch.arange(24).reshape(2, 3, 4)
    assert torch.equal(expand_budget(per_row, 2, 3, 4), per_row)


def test_expand_total():
    assert expand_total(7, 3).tolist() == [7, 7, 7]
    assert expand_total([1, 2, 3], 3).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"budget: got shape \[2\]"):
        expand_total([1, 2], 3)


@pytest.mark.parametrize("budget", [True, 1.5, np.float32(2), torch.tensor([True, False])])
def test_only_integers_are_budgets(budget):
    with pytest.raises(TypeError, match="budget: got"):
        expand_budget(budget, 2, 1, 1)


def test_negative_entries_are_refused():
    with pytest.raises(ValueError, match="budget: got -2, expected at least 0"):
        expand_budget([3, -2], 2, 1, 1)
