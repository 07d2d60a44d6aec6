from dataclasses import replace

import pytest
import torch

from python_ref.training.traces import Trace
from python_ref.training.train import Corpus, Recipe, train
from python_ref.utility import cost_of_scores, optimal_cost

QUICK = Recipe(steps=60, tokens=16, ranking_steps=0, learning_rate=1e-2, average=0.9)
RANKING = replace(QUICK, ranking_steps=40, ranking_tokens=32)


def trace(seed, n=80):
    """Keys far from standard; a head's utility grows with a channel of its own."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.randn(2, 2, n, 4, generator=generator)
    channel = torch.arange(4).view(2, 2, 1, 1).expand(2, 2, n, 1)
    utility = (2 * k.gather(-1, channel).squeeze(-1)).exp() / n
    v = torch.randn(2, 2, n, 4, generator=generator)
    scale = torch.tensor([10.0, 0.1, 3.0, 1.0])
    return Trace("test", (k * scale + 5).half(), v.half(), utility, torch.arange(n) < 4)


def ratio(agent, item):
    pos = torch.arange(item.utility.shape[-1])
    with torch.no_grad():
        scores = agent(item.k.unsqueeze(1), item.v.unsqueeze(1), pos).squeeze(1)
    return cost_of_scores(scores, item.utility) / optimal_cost(item.utility)


@pytest.mark.parametrize("recipe", [QUICK, RANKING], ids=["regression", "ranking"])
def test_every_head_learns_its_own_utility(recipe):
    agent = train([trace(i) for i in range(8)], recipe)
    assert (ratio(agent, trace(100)) < 1.1).all()
    assert agent.position_rows == 80


def test_the_seed_decides_everything():
    traces = [trace(i) for i in range(2)]
    recipe = Recipe(steps=3, tokens=16, ranking_steps=2)
    first, same = (train(traces, recipe).state_dict() for _ in range(2))
    other = train(traces, replace(recipe, seed=1)).state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["input.weight"], other["input.weight"])


def test_recency_is_learned_from_positions_whatever_the_length():
    def aged(n):
        item = trace(n, n)
        item.utility = torch.exp(-(n - torch.arange(n)) / 40.0).expand(2, 2, n).clone()
        return item

    agent = train([aged(n) for n in (50, 100, 150, 200)], replace(QUICK, steps=200, seed=2))
    assert (ratio(agent, aged(120)) < 1.1).all()


def test_a_corpus_gives_the_tokens_that_were_asked_for():
    traces = [trace(0, n=5), trace(1, n=7)]
    corpus = Corpus(traces)
    assert corpus.ranges == [(0, 5), (5, 7)]
    k, v, pos, utility = corpus.batch(torch.tensor([6, 0]))
    assert pos.tolist() == [1, 0]
    assert torch.equal(k[:, 0, :, 0], traces[1].k[:, :, 1].float())
    assert torch.equal(v[:, 0, :, 1], traces[0].v[:, :, 0].float())
    assert torch.equal(utility[..., 0], traces[1].utility[..., 1])


def test_marked_tokens_are_drawn_more_often(monkeypatch):
    drawn = []
    batch = Corpus.batch
    monkeypatch.setattr(
        Corpus, "batch", lambda self, index: drawn.append(index) or batch(self, index)
    )
    train([trace(0, n=40)], Recipe(steps=40, tokens=50, ranking_steps=0, marked_weight=9.0))
    assert len(drawn[1]) == 8 * 50
    share = (torch.cat(drawn[1:]) < 4).float().mean().item()
    assert share == pytest.approx(4 * 9 / (4 * 9 + 36), abs=0.03)


def test_a_loss_that_is_not_finite_stops_training():
    broken = trace(0)
    broken.utility[0, 0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"became nan at step \d+"):
        train([broken], QUICK)


def test_no_traces_are_refused():
    with pytest.raises(ValueError, match="got none, expected at least one"):
        train([], QUICK)
