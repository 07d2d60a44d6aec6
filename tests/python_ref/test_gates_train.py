"""Training a gate: what it learns, exact resume, processes, memory, the files it writes."""

import dataclasses
import random

import pytest
import torch
from families import VOCAB, make

from python_ref import attention_call
from python_ref.data.document import Branch, Document
from python_ref.gates import loss as losses
from python_ref.gates.log import GateRow, plot
from python_ref.gates.recipe import GateRecipe
from python_ref.gates.sequences import sequence, sequences
from python_ref.gates.train import GateTrainer
from python_ref.training.log import read

SHORT = GateRecipe(steps=6, sequences=2, capacity=3, width=8, bias=4, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def texts(count, tokens=24):
    """Random tokens, the same in every iteration."""
    for i in range(count):
        rng = random.Random(i)
        yield [rng.randrange(1, VOCAB) for _ in range(tokens)]


def trainer(recipe=SHORT, **options):
    count = recipe.steps * recipe.sequences
    return GateTrainer(make("llama"), texts(count), recipe, **options)


def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_gate_learns_to_hold_no_more_than_its_capacity():
    rows = []
    recipe = dataclasses.replace(SHORT, steps=30, capacity_weight=4, learning_rate=3e-2)
    gate = trainer(recipe).run(rows.append)
    first, last = rows[0], rows[-1]
    assert first.held > 18
    assert last.excess < 0.1 < 0.7 < first.excess
    assert last.loss < first.loss
    assert gate.provenance["recipe"]["steps"] == 30
    assert gate.provenance["model"] == "LlamaForCausalLM"
    assert len(gate.model_fingerprint) == 16


def test_without_the_capacity_term_nothing_fades():
    rows = []
    trainer(dataclasses.replace(SHORT, capacity_weight=0, steps=20)).run(rows.append)
    assert rows[-1].held > 18


def test_the_model_stays_as_it_was():
    training = trainer()
    before = {name: p.clone() for name, p in training.model.named_parameters()}
    training.run()
    for name, p in training.model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.requires_grad
        assert p.grad is None
    assert not training.model.training


def test_a_training_goes_on_exactly(tmp_path):
    whole = trainer(log=tmp_path / "whole.csv").run()

    class StopError(Exception):
        pass

    def stop(row):
        if row.step == 4:  # one step after the checkpoint, which is lost
            raise StopError

    options = {"checkpoint": tmp_path / "ck", "checkpoint_every": 3, "log": tmp_path / "log.csv"}
    with pytest.raises(StopError):
        trainer(**options).run(stop)
    resumed = trainer(**options, resume=True)
    assert resumed.start == 3
    assert same(resumed.run(), whole)
    rows, expected = (read(tmp_path / n, kind=GateRow) for n in ("log.csv", "whole.csv"))
    timeless = [dataclasses.replace(row, seconds=0) for row in rows]
    assert timeless == [dataclasses.replace(row, seconds=0) for row in expected]
    # A training that is over gives the same again without a step.
    again = trainer(**options, resume=True)
    assert again.start == 6
    assert same(again.run(), whole)


def test_the_seed_decides_the_weights():
    short = dataclasses.replace(SHORT, steps=1)
    assert same(trainer(short).run(), trainer(short).run())
    assert not same(trainer(short).run(), trainer(dataclasses.replace(short, seed=1)).run())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": dataclasses.replace(SHORT, capacity=4)}, "recipe.capacity was 3, now 4"),
        ({"data": {"tokens": 9}}, "data.tokens was 'absent', now 9"),
        ({"resume": False}, "holds one of a training at step 6; expected resume"),
        ({"checkpoint": None}, "got no checkpoint folder"),
        ({"checkpoint_every": 0}, "checkpoint_every: got 0, expected at least 1"),
    ],
)
def test_another_trainings_checkpoint_is_refused(tmp_path, change, message):
    trainer(checkpoint=tmp_path).run()
    with pytest.raises(ValueError, match=message):
        trainer(**{"checkpoint": tmp_path, "resume": True, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: got 0, expected an int, at least 1"),
        ({"width": 1.5}, "width: got 1.5"),
        ({"capacity": 0}, "capacity: got 0, expected above 0"),
        ({"learning_rate": float("nan")}, "learning_rate: got nan, expected above 0"),
        ({"capacity_weight": -1}, "capacity_weight: got -1, expected at least 0"),
    ],
)
def test_a_wrong_recipe_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        GateRecipe(**change)


def test_sequences_that_end_or_are_too_short_are_refused():
    training = GateTrainer(make("llama"), texts(3), SHORT)
    with pytest.raises(ValueError, match="ended after 3, expected 12"):
        training.run()
    with pytest.raises(ValueError, match="one of 1 tokens, expected at least 2"):
        GateTrainer(make("llama"), iter([[1], [2]]), SHORT).run()


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path):
    training = trainer(checkpoint=tmp_path)
    training.gate.last_bias.data.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="step 1: the loss is nan"):
        training.run()
    assert not list(tmp_path.iterdir())


def test_a_log_that_exists_is_not_written_over(tmp_path):
    (tmp_path / "log.csv").write_text("mine")
    with pytest.raises(ValueError, match="exists, expected a new file"):
        trainer(log=tmp_path / "log.csv")


def test_the_log_is_drawn(tmp_path):
    trainer(log=tmp_path / "log.csv").run()
    plot(read(tmp_path / "log.csv", kind=GateRow), tmp_path / "log.png")
    assert (tmp_path / "log.png").read_bytes()[1:4] == b"PNG"


def test_a_document_is_its_context_and_its_branches_once_each():
    branches = tuple(Branch((i, i + 1), 1) for i in (10, 20, 30))
    document = Document("needles", (1, 2, 3), branches)
    orders = {sequence(document, 99, random.Random(i)) for i in range(20)}
    assert len(orders) > 3
    for ids in orders:
        assert ids[:3] == (1, 2, 3)
        assert sorted(ids[3:]) == [10, 11, 20, 21, 30, 31]
    assert next(sequences([document], 5)) == next(sequences([document], 9))[:5]


def test_no_matrix_of_all_pairs_is_kept(monkeypatch):
    """What a backward pass is going to need grows with T, not with T x T or T x vocabulary."""
    monkeypatch.setattr(attention_call, "BLOCK_ELEMENTS", 1 << 13)
    monkeypatch.setattr(losses, "BLOCK_ELEMENTS", 1 << 13)
    monkeypatch.setattr(losses, "BLOCK_TOKENS", 16)

    def kept(tokens):
        """Elements of the storages that the graph of a loss holds on to."""
        storages = {}

        def pack(x):
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // 4
            return x

        training = GateTrainer(make("llama"), texts(1, tokens), SHORT)
        training.model.requires_grad_(False)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss, _ = training._losses(next(texts(1, tokens)))
        loss.backward()
        return sum(storages.values())

    constant = 2 * kept(60) - kept(120)
    linear = constant + (kept(120) - kept(60)) * 4
    assert kept(240) < 1.1 * linear


def test_largest_tensor_is_a_block(monkeypatch):
    """Nor is such a matrix made for a moment."""
    monkeypatch.setattr(attention_call, "BLOCK_ELEMENTS", 1 << 13)
    monkeypatch.setattr(losses, "BLOCK_ELEMENTS", 1 << 13)
    monkeypatch.setattr(losses, "BLOCK_TOKENS", 16)
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            output = function(*args, **(kwargs or {}))
            for x in output if isinstance(output, tuple | list) else (output,):
                if isinstance(x, torch.Tensor):
                    largest = max(largest, x.numel())
            return output

    tokens = 240
    training = GateTrainer(make("llama"), texts(1, tokens), SHORT)
    training.model.requires_grad_(False)
    training.model.config._attn_implementation = "sdpa"
    with Watch():
        loss, _ = training._losses(next(texts(1, tokens)))
        loss.backward()
    assert largest < tokens * tokens
