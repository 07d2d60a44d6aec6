import csv
import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from python_ref.agents import PaperAgent, SmallAgent
from python_ref.fold import fold, score
from python_ref.training import log
from python_ref.training.checkpoint import Checkpoint
from python_ref.training.corpus import Corpus, draw_tokens, generator_for
from python_ref.training.optimiser import Optimiser
from python_ref.training.traces import Trace
from python_ref.training.train import Phase, Recipe, Trainer, parse_phase, train
from python_ref.training.validation import ranking_costs
from python_ref.utility import cost_of_scores, optimal_cost

QUICK = Recipe((Phase(steps=60, tokens=16, learning_rate=1e-2),), average=0.9)
SHORT = Recipe((Phase(steps=6, tokens=8), Phase("rloo", steps=5, items=2, tokens=12)), average=0.5)


@pytest.fixture(autouse=True)
def one_thread():
    """For tensors this small more threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trace(seed, n=80, splits=None):
    """Keys far from standard; a head's utility grows with a channel of its own."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.randn(2, 2, n, 4, generator=generator)
    channel = torch.arange(4).view(2, 2, 1, 1).expand(2, 2, n, 1)
    utility = (2 * k.gather(-1, channel).squeeze(-1)).exp() / n
    v = torch.randn(2, 2, n, 4, generator=generator)
    scale = torch.tensor([10.0, 0.1, 3.0, 1.0])
    splits = splits or (n,)
    utilities = tuple(utility[..., :split] * (1 + i) for i, split in enumerate(splits))
    k, v = (k * scale + 5).half(), v.half()
    return Trace("test", k, v, splits, utilities, torch.arange(n) < 4)


def ratio(agent, item):
    pos = torch.arange(item.utilities[-1].shape[-1])
    with torch.no_grad():
        scores = agent(item.k.unsqueeze(1), item.v.unsqueeze(1), pos).squeeze(1)
    return cost_of_scores(scores, item.utilities[-1]) / optimal_cost(item.utilities[-1])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


# What is learned


@pytest.mark.parametrize(
    "recipe",
    [
        QUICK,
        replace(QUICK, phases=(Phase("exact", 100, items=2, tokens=32, learning_rate=1e-2),)),
        replace(QUICK, phases=(*QUICK.phases, Phase("rloo", 20, tokens=32))),
        replace(QUICK, architecture="paper", agent={"hidden": 16, "position": "smooth"}),
    ],
    ids=["regression", "exact", "regression, rloo", "paper"],
)
def test_every_head_learns_its_own_utility(recipe):
    agent = train([trace(i) for i in range(8)], recipe)
    assert (ratio(agent, trace(100)) < 1.1).all()
    assert agent.position_rows == 80
    assert isinstance(agent, PaperAgent if recipe.architecture == "paper" else SmallAgent)


def test_recency_is_learned_from_positions_whatever_the_length():
    def aged(n):
        item = trace(n, n)
        utility = torch.exp(-(n - torch.arange(n)) / 40.0).expand(2, 2, n).clone()
        return replace(item, utilities=(utility,))

    phase = replace(QUICK.phases[0], steps=200)
    agent = train([aged(n) for n in (50, 100, 150, 200)], replace(QUICK, phases=(phase,), seed=2))
    assert (ratio(agent, aged(120)) < 1.1).all()


def test_a_standardised_paper_agent_is_exported_as_it_scores():
    recipe = replace(SHORT, architecture="paper", agent={"hidden": 8, "branch_k": 12})
    traces = [trace(0)]
    agent = train(traces, recipe)
    assert agent.standardise
    assert agent.k_mean[0, 0, 0].item() == pytest.approx(5, abs=3)
    assert agent.k_std[0, 0].tolist() == pytest.approx([10, 0.1, 3, 1], rel=0.3)
    k, v = (x.float().unsqueeze(1) for x in (traces[0].k, traces[0].v))
    pos = torch.arange(80)
    torch.testing.assert_close(score(fold(agent), k, v, pos), agent(k, v, pos), rtol=0, atol=2e-4)
    plain = train(traces, replace(recipe, agent={**recipe.agent, "standardise": False}))
    assert not plain.standardise


def test_an_option_that_the_agent_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"agent: got \{'width': 3\}.*'width'"):
        train([trace(0)], replace(SHORT, agent={"width": 3}))


def test_the_seed_decides_everything():
    traces = [trace(i) for i in range(2)]
    first, again = (train(traces, SHORT) for _ in range(2))
    assert same(first, again)
    assert not same(first, train(traces, replace(SHORT, seed=1)))


def test_losses_are_reported_step_by_step():
    seen = []
    train([trace(0)], SHORT, lambda *step: seen.append(step))
    assert [s[:2] for s in seen] == [
        *(("regression", i) for i in range(6)),
        *(("rloo", i) for i in range(5)),
    ]
    assert seen[0][2] > 0


# Items and tokens


def test_a_batch_holds_the_tokens_that_were_drawn():
    traces = [trace(0, 30, (10, 30)), trace(1, 20)]
    corpus = Corpus(traces)
    assert corpus.longest == 30
    items = corpus.draw(Phase(), 12, 8, generator(3))
    assert {(item.trace, item.split) for item in items} == {(0, 0), (0, 1), (1, 0)}
    for layers in (slice(0, 2), slice(1, 2)):
        data = corpus.read(items, layers, "cpu")
        for i, item in enumerate(items):
            own, chosen = traces[item.trace], item.index
            assert (chosen < own.splits[item.split]).all()
            at = slice(8 * i, 8 * i + 8)
            assert torch.equal(data.pos[at], chosen)
            assert torch.equal(data.k[:, 0, :, at], own.k[layers][:, :, chosen].float())
            assert torch.equal(data.v[:, 0, :, at], own.v[layers][:, :, chosen].float())
            utility = own.utilities[item.split][layers][:, :, chosen]
            assert torch.equal(data.utility[:, :, i], utility)


def test_longer_traces_are_drawn_more_often_and_splits_alike():
    corpus = Corpus([trace(0, 60, (10, 20, 60)), trace(1, 20)])
    items = corpus.draw(Phase(), 2000, 1, generator())
    shares = [sum((i.trace, i.split) == key for i in items) / 2000 for key in
              [(0, 0), (0, 1), (0, 2), (1, 0)]]  # fmt: skip
    assert shares == pytest.approx([0.25] * 4, abs=0.03)


def test_marked_tokens_are_drawn_more_often():
    marked = torch.zeros(40, dtype=torch.bool)
    marked[[3, 7, 8, 30]] = True
    counts = torch.zeros(40)
    for seed in range(300):
        index, _ = draw_tokens(marked, 16, 9.0, generator(seed))
        assert len(set(index.tolist())) == 16
        assert index.tolist() == sorted(index.tolist())
        counts[index] += 1 / 300
    # 4 marked and 36 others; 9 x 4 : 36 would be 8 of 16, but there are 4.
    assert counts[marked].tolist() == [pytest.approx(1.0)] * 4
    others = counts[~marked]
    assert others.mean().item() == pytest.approx(12 / 36)
    assert others.std().item() < 0.05
    few, _ = draw_tokens(torch.arange(1000) < 100, 55, 1.2, generator())
    assert (few < 100).sum() == round(55 * 120 / 1020)


@pytest.mark.parametrize("marked_weight", [1.0, 4.0])
def test_weights_make_up_for_how_tokens_were_drawn(marked_weight):
    """The drawn tokens' weighted sums are the context's, on average."""
    value = torch.rand(50, generator=generator())
    sums = []
    for seed in range(800):
        index, weight = draw_tokens(torch.arange(50) < 6, 12, marked_weight, generator(seed))
        sums.append((weight * value[index]).sum())
        assert weight.sum().item() == pytest.approx(50)
    sums = torch.stack(sums)
    error = sums.std() / len(sums) ** 0.5
    assert abs(sums.mean() - value.sum()) < 4 * error
    assert error < 0.015 * value.sum()


def test_a_short_context_gives_its_tokens_again_but_evenly():
    index, weight = draw_tokens(torch.arange(5) == 2, 12, 1.0, generator())
    assert sorted(index.bincount().tolist()) == [2, 2, 2, 3, 3]
    assert weight.tolist() == [pytest.approx(5 / 12)] * 12
    items = Corpus([trace(0, 5), trace(1, 30)]).draw(Phase(), 20, 99, generator())
    assert {len(item.index) for item in items} == {30}
    alone = Corpus([trace(0, 5)]).draw(Phase(), 3, 99, generator())
    assert all(item.index.tolist() == [0, 1, 2, 3, 4] for item in alone)
    # The marked and the others may both be too few.
    index, _ = draw_tokens(torch.arange(6) < 3, 6, 4.0, generator())
    assert index.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_unbiased_phase_weights_the_loss(monkeypatch):
    phase = Phase("exact", 1, items=1, tokens=20, marked_weight=6.0)
    losses = {}
    for unbiased in (False, True):
        recipe = Recipe((replace(phase, unbiased=unbiased),))
        train([trace(0)], recipe, lambda name, step, loss, u=unbiased: losses.update({u: loss}))
    assert losses[True] != pytest.approx(losses[False], rel=1e-3)


def test_nothing_depends_on_where_the_traces_are():
    class Lazy(list):
        reads = 0

        def __getitem__(self, index):
            Lazy.reads += 1
            return super().__getitem__(index)

    traces = [trace(i, 40) for i in range(3)]
    assert same(train(traces, SHORT, in_memory=True), train(Lazy(traces), SHORT, in_memory=False))
    assert Lazy.reads > 10


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([], "traces: got none, expected at least one"),
        (
            [trace(0), replace(trace(1), v=torch.zeros(2, 2, 80, 3))],
            r"traces\[1\]: got \[L, H, Dk, Dv\] = \[2, 2, 4, 3\], expected \[2, 2, 4, 4\]",
        ),
        ([replace(trace(0), splits=(90,))], r"traces\[0\]: got a split at 90 with utilities"),
        ([replace(trace(0), splits=())], r"traces\[0\]: got 0 splits and 1 utilities"),
    ],
)
def test_traces_that_do_not_fit_are_refused(traces, message):
    with pytest.raises(ValueError, match=message):
        train(traces, SHORT)


# The optimiser


def test_each_head_is_clipped_by_its_own_norm():
    agent = SmallAgent(2, 2, 4, hidden=3)
    optimiser = Optimiser(agent, Phase(), Recipe(clip=5.0))
    for p in agent.parameters():
        p.grad = torch.ones_like(p)
        p.grad[1, 0] *= 1000
    optimiser.parameters["output.bias"].grad[0, 1] = 0.0
    size = sum(p[0, 0].numel() for p in agent.parameters())
    norm = optimiser.gradient_norm()
    expected = torch.tensor([[size, size - 1], [1000**2 * size, size]]).sqrt()
    torch.testing.assert_close(norm, expected)
    optimiser.adamw.zero_grad = lambda **_: None
    optimiser.step(0, norm)
    clipped = optimiser.gradient_norm()
    torch.testing.assert_close(clipped, torch.full((2, 2), 5.0).minimum(norm))


def test_the_learning_rate_warms_up_and_decays():
    agent = SmallAgent(1, 1, 4, hidden=2)
    rate = Optimiser(agent, Phase(steps=2000, learning_rate=0.5), Recipe()).learning_rate
    assert rate(0) == pytest.approx(0.5 / 100)
    assert rate(49) == pytest.approx(0.25, rel=2e-3)
    assert rate(1000) == pytest.approx(0.5 * (0.01 + 0.99 / 2))
    assert rate(1999) == pytest.approx(0.005, rel=1e-3)
    assert Optimiser(agent, Phase(steps=20, learning_rate=1.0), Recipe()).learning_rate(1) > 0.98


def test_one_step_is_adamw_and_the_average_follows():
    torch.manual_seed(0)
    agent = SmallAgent(1, 2, 4, hidden=2)
    before = {name: p.detach().clone() for name, p in agent.named_parameters()}
    phase = Phase(steps=5, learning_rate=0.1)
    optimiser = Optimiser(agent, phase, Recipe(weight_decay=0.01, average=0.5, clip=1e9))
    gradients = {}
    for name, p in agent.named_parameters():
        p.grad = gradients[name] = torch.randn_like(p)
        gradients[name] = p.grad.clone()
    optimiser.step(0, optimiser.gradient_norm())
    for name, p in agent.named_parameters():
        g = gradients[name]
        # The first step's moments, corrected for their start, are g and g^2.
        expected = before[name] * (1 - 0.1 * 0.01) - 0.1 * g / (g.abs() + 1e-8)
        torch.testing.assert_close(p.detach(), expected)
        torch.testing.assert_close(optimiser.average[name], 0.1 * before[name] + 0.9 * expected)
    first = {name: average.clone() for name, average in optimiser.average.items()}
    for name, p in agent.named_parameters():
        p.grad = gradients[name]
    optimiser.step(90, optimiser.gradient_norm())
    for name, p in agent.named_parameters():
        average = 0.5 * first[name] + 0.5 * p.detach()
        torch.testing.assert_close(optimiser.average[name], average)
    optimiser.finish()
    assert all(torch.equal(p, optimiser.average[n]) for n, p in agent.named_parameters())


@pytest.mark.parametrize("objective", ["exact", "rloo", "pairwise", "listwise"])
def test_objectives_that_see_differences_leave_the_level_alone(objective):
    """Its gradient is rounding noise, of which Adam would make steps of full size."""
    recipe = Recipe((Phase(objective, 8, tokens=16),), weight_decay=0.0)
    trained = train([trace(0)], recipe).output
    fresh = SmallAgent(2, 2, 4, position_rows=80, generator=generator_for("agent", 0)).output
    assert torch.equal(trained.bias, fresh.bias)
    assert not torch.equal(trained.weight, fresh.weight)


# Checkpoints


class InterruptError(Exception):
    pass


def interrupt_after(steps):
    left = iter(range(steps - 1))

    def progress(phase, step, loss):
        if next(left, None) is None:
            raise InterruptError

    return progress


def without_seconds(path):
    with path.open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


@pytest.mark.parametrize("steps", [3, 6, 8], ids=["first phase", "between", "second phase"])
def test_an_interrupted_training_ends_bit_for_bit_alike(tmp_path, steps):
    traces = [trace(i) for i in range(3)]
    options = {"dev": [trace(9)], "dev_every": 3, "checkpoint_every": 2}
    whole = train(traces, SHORT, log=tmp_path / "whole.csv", **options)
    options |= {"checkpoint": tmp_path / "state", "log": tmp_path / "parts.csv"}
    with pytest.raises(InterruptError):
        train(traces, SHORT, interrupt_after(steps), **options)
    trainer = Trainer(traces, SHORT, resume=True, **options)
    assert trainer.steps_done == {3: 2, 6: 6, 8: 8}[steps]
    resumed = trainer.run()
    assert same(resumed, whole)
    assert trainer.dev_cost.plain.mean() > 1
    rows = without_seconds(tmp_path / "parts.csv")
    assert rows == without_seconds(tmp_path / "whole.csv")
    assert [row["step"] for row in rows] == [str(i + 1) for i in range(11)]
    finished = Trainer(traces, SHORT, resume=True, **options)
    assert same(finished.run(interrupt_after(1)), whole)  # no step is left


def test_a_resume_must_be_of_the_same_training(tmp_path):
    traces = [trace(i) for i in range(2)]
    train(traces, SHORT, checkpoint=tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    longer = replace(SHORT, phases=(SHORT.phases[0], replace(SHORT.phases[1], steps=9)))
    cases = {
        r"recipe.phases\[1\].steps was 5, now 9$": (traces, longer),
        r"recipe.seed was 0, now 3$": (traces, replace(SHORT, seed=3)),
        r"recipe.agent.hidden was 'absent', now 8": (traces, replace(SHORT, agent={"hidden": 8})),
        r"traces.fingerprint was '[0-9a-f]{16}', now '": ([trace(0), trace(5)], SHORT),
        r"geometry.longest was 80, now 90.*traces.count was 2, now 1": ([trace(0, 90)], SHORT),
    }
    for message, (others, recipe) in cases.items():
        with pytest.raises(ValueError, match=f"is of another training: .*{message}"):
            train(others, recipe, checkpoint=tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds one of a training.*expected resume, or another"):
        train(traces, SHORT, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="resume: got no checkpoint folder"):
        train(traces, SHORT, resume=True)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_broken_checkpoint_is_named(tmp_path):
    traces = [trace(0)]
    train(traces, SHORT, checkpoint=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-100], whole[:20], b"", b"something else, of some length"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"checkpoint .*\.safetensors is malformed or cut"):
            train(traces, SHORT, checkpoint=tmp_path, resume=True)
    path.write_bytes(whole.replace(b'"kvp-training"', b'"kvp-notthing"'))
    with pytest.raises(ValueError, match="format and version are 'kvp-notthing' and '1'"):
        train(traces, SHORT, checkpoint=tmp_path, resume=True)


def test_a_checkpoint_is_tensors_and_json(tmp_path):
    with pytest.raises(InterruptError):
        train([trace(0)], SHORT, interrupt_after(5), checkpoint=tmp_path, checkpoint_every=4)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    tensors = load_file(tmp_path / "checkpoint.safetensors")
    assert tensors["agent/input.weight"].shape == (2, 2, 64, 16)
    assert tensors["average/input.weight"].shape == (2, 2, 64, 16)
    assert not torch.equal(tensors["agent/input.weight"], tensors["average/input.weight"])
    state = Checkpoint.load(tmp_path)
    assert (state.phase, state.step) == (0, 4)
    assert state.config["recipe"] == json.loads(json.dumps(SHORT.as_json()))


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path):
    broken = replace(trace(0), utilities=(trace(0).utilities[0].clone(),))

    def breaks(phase, step, loss):
        if (phase, step) == ("rloo", 2):
            broken.utilities[0][1, 0] = torch.nan

    message = (
        r"phase 2 \(rloo\), step 4: the loss became nan in 1 heads, first in layer 1, head 0; "
        r".* keeps the last checkpoint"
    )
    options = {"checkpoint": tmp_path, "checkpoint_every": 2, "in_memory": False}
    with pytest.raises(FloatingPointError, match=message):
        train([broken], SHORT, breaks, **options)
    state = Checkpoint.load(tmp_path)
    assert (state.phase, state.step) == (1, 2)
    assert all(bool(torch.isfinite(t).all()) for t in state.tensors.values())


def test_a_gradient_that_is_not_finite_stops(monkeypatch):
    norm = Optimiser.gradient_norm
    monkeypatch.setattr(Optimiser, "gradient_norm", lambda self: norm(self) * math.inf)
    with pytest.raises(FloatingPointError, match=r"step 1: the gradient became inf in 4 heads"):
        train([trace(0)], SHORT)


# Measurement and log


@pytest.mark.parametrize("inputs", ["k+v+pos", "k+v+pos+age"])
def test_the_development_cost_is_that_of_the_averaged_weights(inputs):
    traces, dev = [trace(0)], [trace(8, 60, (30, 60)), trace(9, 700)]
    trainer = Trainer(traces, replace(SHORT, agent={"inputs": inputs}), dev=dev)
    agent = trainer.run()
    plain, pinned = [], []
    for item in dev:
        pos = torch.arange(item.k.shape[2])
        k, v = item.k.float().unsqueeze(1), item.v.float().unsqueeze(1)
        for n, utility in zip(item.splits, item.utilities, strict=True):
            with torch.no_grad():
                own = agent(k, v, pos, n).squeeze(1)[..., :n]
            plain.append(cost_of_scores(own, utility) / optimal_cost(utility))
            own, ideal = own.double(), utility.double()
            for ranked in (own, ideal):
                ranked[..., :4] += 1e4
                ranked[..., n - 16 :] += 1e4
            pinned.append(cost_of_scores(own, utility) / cost_of_scores(ideal, utility))
    expected = torch.stack(plain).mean(0), torch.stack(pinned).mean(0)
    torch.testing.assert_close(trainer.dev_cost.plain, expected[0], rtol=1e-4, atol=0)
    torch.testing.assert_close(trainer.dev_cost.pinned, expected[1], rtol=1e-4, atol=0)
    assert (expected[1] != expected[0]).all()
    provenance = trainer.provenance()
    assert provenance["dev"]["cost"] == pytest.approx(expected[0].mean().item(), abs=1e-4)
    assert provenance["traces"]["count"] == 1
    assert json.loads(json.dumps(provenance))["recipe"]["phases"][1]["objective"] == "rloo"


def test_the_ideal_scores_cost_one():
    item = trace(3, 50, (30, 50))
    costs = ranking_costs(lambda k, v, pos, n: item.utilities[-1][:, None, :, pos], [item])
    assert costs.shape == (2, 2, 2, 2)
    torch.testing.assert_close(costs, torch.ones_like(costs))
    with pytest.raises(ValueError, match="dev: got no traces"):
        Trainer([item], SHORT, dev=[])
    with pytest.raises(ValueError, match=r"dev\[0\]: got \[L, H, Dk, Dv\]"):
        Trainer([item], SHORT, dev=[replace(item, v=torch.zeros(2, 2, 50, 3))])


def test_the_log_has_a_row_a_step_and_a_picture(tmp_path):
    path, picture = tmp_path / "new" / "log.csv", tmp_path / "log.png"
    train([trace(0)], SHORT, log=path, dev=[trace(1)], dev_every=4)
    rows = log.read(path)
    assert [row.step for row in rows] == list(range(1, 12))
    assert [row.phase for row in rows] == ["1 regression"] * 6 + ["2 rloo"] * 5
    assert [row.step for row in rows if row.dev_cost] == [4, 6, 8, 11]
    assert all(row.gradient_norm > 0 and row.learning_rate > 0 for row in rows)
    assert sorted(row.seconds for row in rows) == [row.seconds for row in rows]
    log.plot(rows, picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match=r"log: .*log.csv exists"):
        train([trace(0)], SHORT, log=path)
    assert log.read(path) == rows
    with path.open("a") as file:
        file.write("12,2 rl")
    with pytest.raises(ValueError, match="line 13 is malformed"):
        log.read(path)
    path.write_text("something else\n")
    with pytest.raises(ValueError, match="does not begin with the columns step,phase,loss"):
        log.read(path)


# Recipes


def test_phases_from_text():
    assert parse_phase("regression", steps=7, items=None) == Phase(steps=7)
    phase = parse_phase("rloo:150,tokens=256,learning_rate=2e-4,rankings=16,unbiased=1", items=3)
    assert phase == Phase("rloo", 150, 3, 256, 2e-4, 1.0, unbiased=True, options={"rankings": 16})
    assert parse_phase("exact:9", steps=7).steps == 9
    for text, message in {
        "nothing": "objective: got 'nothing', expected one of",
        "exact:x": "steps is 'x', expected a number",
        "exact:5,tokens": "got 'tokens', expected KEY=VALUE",
        "exact,rankings=3": r"options of exact: got \['rankings'\], expected some of \['others'\]",
        "exact:0": "steps: got 0, expected an int, at least 1",
        "exact,learning_rate=-1": "learning_rate: got -1, expected above 0",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse_phase(text)
    for changes, message in (
        ({"phases": ()}, "phases: got none"),
        ({"architecture": "big"}, "architecture: got 'big'"),
        ({"average": 1.0}, "average: got 1.0"),
        ({"seed": -1}, "seed: got -1"),
        ({"clip": 0.0}, "clip: got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(SHORT, **changes)


def test_generators_follow_from_their_key():
    draws = [torch.rand(2, generator=generator_for(*key)) for key in ((1, "a"), (1, "a"), (1, "b"))]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
