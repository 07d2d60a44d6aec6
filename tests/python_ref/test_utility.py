"""Attention against one dense softmax, cost against its definition over all budgets."""

import itertools

import pytest
import torch

from python_ref.attention import (
    attention,
    attention_blocks,
    attention_received,
    group_attention_blocks,
)
from python_ref.utility import cost, cost_of_scores, normalised_cost, optimal_cost, utility

B, H, G, T, D = 2, 2, 3, 23, 8


def qk(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    q = 2 * torch.randn(B, H * G, T, D, generator=g, dtype=torch.float64)
    k = torch.randn(B, H, T, D, generator=g, dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


def dense(q, k, valid):
    """[B, H, G, T, T] by loops over query heads."""
    out = torch.zeros(B, H, G, T, T, dtype=q.dtype)
    for b, h, g, t in itertools.product(range(B), range(H), range(G), range(T)):
        seen = [i for i in range(t + 1) if valid[b, h, i]]
        if valid[b, h, t]:
            logits = k[b, h, seen] @ q[b, h * G + g, t] / D**0.5
            out[b, h, g, t, seen] = logits.softmax(dim=0)
    return out


@pytest.fixture(scope="module")
def whole():
    q, k = qk()
    return dense(q, k, torch.ones(B, H, T, dtype=torch.bool))


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("queries", [1, 9, T])
def test_attention_blocks(whole, queries, block):
    q, k = qk()
    blocks = list(attention_blocks(q[:, :, T - queries :], k, block=block))
    assert [start for start, _ in blocks] == list(range(0, queries, block))
    actual = torch.cat([weights for _, weights in blocks], dim=-2)
    torch.testing.assert_close(actual, whole[..., T - queries :, :])


def test_reductions(whole):
    q, k = qk()
    torch.testing.assert_close(attention(q, k), whole)
    torch.testing.assert_close(attention_received(q, k, block=5), whole.sum(dim=-2))
    grouped = torch.cat([a for _, a in group_attention_blocks(q, k, block=5)], dim=-2)
    torch.testing.assert_close(grouped, whole.amax(dim=2))


def test_queries_in_the_middle_see_only_their_prefix(whole):
    q, k = qk()
    _, actual = next(attention_blocks(q[:, :, 5:9], k, offset=5))
    torch.testing.assert_close(actual, whole[..., 5:9, :])


def test_padding_is_neither_seen_nor_sees():
    q, k = qk()
    valid = torch.rand(B, H, T, generator=torch.Generator().manual_seed(1)) < 0.7
    valid[0, :, :6] = False
    _, actual = next(attention_blocks(q, k, valid=valid))
    torch.testing.assert_close(actual, dense(q, k, valid))
    shared = valid[:, 0]
    _, actual = next(attention_blocks(q, k, valid=shared))
    torch.testing.assert_close(actual, dense(q, k, shared[:, None].expand(B, H, T)))


def test_scale_and_precision():
    q, k = qk(torch.bfloat16)
    _, actual = next(attention_blocks(q, k))
    assert actual.dtype == torch.float32
    _, expected = next(attention_blocks(q.float(), k.float()))
    assert torch.equal(actual, expected)
    _, unscaled = next(attention_blocks(q.float() * D**-0.5, k.float(), scale=1.0))
    torch.testing.assert_close(unscaled, expected)


def test_leading_dimensions(whole):
    q, k = qk()
    torch.testing.assert_close(attention(q[1], k[1]), whole[1])
    stacked = attention(torch.stack([q, q]), torch.stack([k, k]))
    torch.testing.assert_close(stacked[1], whole)


def test_utility(whole):
    q, k = qk()
    n = 15
    expected = whole.amax(dim=2)[:, :, n:, :n].sum(dim=2)
    torch.testing.assert_close(utility(q[:, :, n:], k, block=3), expected)
    assert utility(q[:, :, n:].float(), k.float()).dtype == torch.float32


def test_bad_shapes_are_named():
    q, k = qk()
    with pytest.raises(ValueError, match=r"q: got shape \[2, 5, 23, 8\]"):
        attention(q[:, :5], k)
    with pytest.raises(ValueError, match="offset: got 20 for 5 queries"):
        next(attention_blocks(q[:, :, :5], k, offset=20))
    with pytest.raises(ValueError, match="q: got 23 queries, expected at most 22"):
        utility(q, k[:, :, :22])


def lost_over_all_budgets(a, order):
    return sum(float(a[order[budget:]].sum()) for budget in range(len(a)))


def test_cost_is_the_attention_lost_over_all_budgets():
    g = torch.Generator().manual_seed(0)
    a = torch.rand(3, 12, generator=g)
    order = torch.stack([torch.randperm(12, generator=g) for _ in range(3)])
    expected = [lost_over_all_budgets(a[i], order[i]) for i in range(3)]
    torch.testing.assert_close(cost(a, order), torch.tensor(expected).double())


def test_optimal_cost_is_the_least_of_all_rankings():
    a = torch.tensor([0.3, 0.0, 1.2, 0.3, 0.05])
    costs = [float(cost(a, torch.tensor(p))) for p in itertools.permutations(range(5))]
    assert abs(min(costs) - float(optimal_cost(a))) < 1e-9
    assert max(costs) > 2 * min(costs)


def test_normalised_cost():
    costs, optimal = torch.tensor([3.0, 9.0, 900.0, 0.0]), torch.tensor([3.0, 3.0, 3.0, 0.0])
    assert normalised_cost(costs, optimal).tolist() == [-1.0, -3.0, -200.0, -1.0]


def test_cost_of_scores():
    a = torch.tensor([0.5, 0.1, 0.0, 0.7])
    valid = torch.tensor([True, True, False, True])
    scores = torch.tensor([0.0, torch.nan, 9.0, 2.0])
    # 3, then 0, then the NaN, then padding.
    expected = 1 * 0.7 + 2 * 0.5 + 3 * 0.1
    assert abs(float(cost_of_scores(scores, a, valid)) - expected) < 1e-6
    assert float(cost_of_scores(a, a)) == float(optimal_cost(a))
