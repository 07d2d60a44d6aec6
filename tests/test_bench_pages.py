"""The scripts that write pages of docs from measurements, without the model."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from families import make, random_ids

import python_ref.methods
from python_ref.evaluation.records import Record
from python_ref.evaluation.summary import summarise
from python_ref.model_info import ModelInfo
from python_ref.training.trace_store import TraceWriter
from python_ref.training.traces import Trace, TraceOptions

BENCH = Path(__file__).parents[1] / "bench"
MODEL = ModelInfo("some/model", "0123456789abcdef", "float32", 2, 2, 1, 4, 4)


def script(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


ablation, results = script("ablation"), script("results")
bounded, methods = script("bounded"), script("methods")


def made(kind, tokens, seed=0):
    g = torch.Generator().manual_seed(100 * seed + tokens)
    k, v = (torch.randn(2, 1, tokens, 4, generator=g).half() for _ in range(2))
    splits = (tokens // 2, tokens)
    utilities = tuple(torch.rand(2, 1, n, generator=g) for n in splits)
    return Trace(kind, k, v, splits, utilities, torch.zeros(tokens, dtype=torch.bool))


@pytest.fixture
def traces(tmp_path):
    kinds = {
        "ruler": ["ruler/vt", "ruler/niah_single_1"],
        "text": ["novel", "dialogue"],
        "needles": ["needles"],
        "dev": ["needles", "ruler/vt", "essay", "dialogue"],
    }
    for name, own in kinds.items():
        with TraceWriter(tmp_path / name, MODEL, TraceOptions()) as writer:
            for number, kind in enumerate(own):
                writer.add(f"{name}{number}", made(kind, 40 + 2 * number))
    return tmp_path


def small(name, **changes):
    return ablation.Variant(name, ("regression:3,items=2,tokens=8",), {"hidden": 4}, **changes)


def test_a_variant_is_trained_once(traces, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    first = ablation.trained(small("a"), traces, work).state_dict()
    other = ablation.trained(small("b", seed=1), traces, work).state_dict()
    less = ablation.trained(small("c", without=("ruler/vt",)), traces, work).state_dict()
    assert len(list(work.iterdir())) == 3
    monkeypatch.setattr(ablation.Trainer, "run", lambda self: pytest.fail("trained again"))
    again = ablation.trained(small("another name"), traces, work).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    for different in (other, less):
        assert not torch.equal(first["output.weight"], different["output.weight"])


@pytest.mark.parametrize("inputs", ["k+v+pos", "k+v+pos+age"])
def test_costs_by_kind(traces, tmp_path, inputs):
    variant = dataclasses.replace(small("a"), agent={"inputs": inputs})
    costs = ablation.dev_costs(ablation.trained(variant, traces, tmp_path), traces / "dev")
    assert sorted(costs) == ["needles", "ruler", "text"]
    assert all(pinned >= 1 and plain > 1 for plain, pinned in costs.values())


def test_every_variant_of_the_ablation_can_be_trained():
    names = [section.name for section in ablation.SECTIONS]
    assert names == ["Objectives", "Inputs", "Seeds", "Leaving a task out"]
    for section in ablation.SECTIONS:
        recipes = [variant.recipe() for variant in section.variants]
        assert len({variant.name for variant in section.variants}) == len(recipes)
        tokens = {tuple((p.steps, p.items * p.tokens) for p in recipe.phases) for recipe in recipes}
        assert len(tokens) == 1, "equal steps and equal tokens"
    seeds, tasks = ablation.SECTIONS[2:]
    assert {v.seed for v in seeds.variants} == {0, 1, 2}
    assert [v.without for v in tasks.variants[1:-1]] == [(task,) for task in tasks.tasks]


def test_the_default_recipe_is_the_one_of_the_makefile():
    makefile = (BENCH.parent / "Makefile").read_text()
    recipe = " ".join(f"--objective {phase}" for phase in ablation.DEFAULT)
    assert f"RECIPE := {recipe}\n" in makefile


def record(method, document, budget, right, **metrics):
    values = {"model": "m", "task": "t", "kind": "k", "document": document, "protocol": "after"}
    values |= {"branch": None, "method": method, "fingerprint": "", "allocator": "uniform"}
    values |= {"budget": budget, "sinks": 4, "recent": 16, "metric": "exact_match"}
    values |= {"n": 400, "kept": round(400 * budget), "questions": 4, "tokens": 12}
    return Record(**values, metrics={"exact_match": right, **metrics})


def summary(methods, budgets):
    """Ten documents of four questions; the whole cache answers half, `right` of it is kept."""
    records = [record("full", str(i), 1.0, 0.5) for i in range(10)]
    for method, right in methods.items():
        for budget in budgets:
            records += [record(method, str(i), budget, right / 2, cost=1.25) for i in range(10)]
    return summarise(records, reference=next(iter(methods)))


def test_a_page_of_the_ablation():
    made = next(
        s for s in summary({"a": 1.0, "b": 0.5}, ablation.BUDGETS) if s.metric == "exact_match"
    )
    section = ablation.Section("Name", "What it is.", (small("a"), small("b")), {"needles": 10})
    costs = {name: {"needles": (1.5, 1.25), "text": (1.25, 1.125)} for name in ("a", "b")}
    text = ablation.page(section, costs, {"needles": made})
    assert text.startswith("## Name\n\nWhat it is.\n")
    assert "needles: the whole cache answers 0.50 of 40 questions in 10 contexts." in text
    assert "| | cost, needles | cost, text | needles, 25% kept | needles, 12.5% kept |" in text
    assert "| a | 1.50 / 1.25 | 1.25 / 1.12 | 1.00 | 1.00 |" in text
    assert "| b | 1.50 / 1.25 | 1.25 / 1.12 | 0.50 | 0.50 |" in text


def test_a_page_of_the_results():
    section = results.Section("Name", "t", (450, 550), 10, budgets=(0.25, 0.125))
    methods = {"kvp": 1.0, "snapkv:pool=5": 0.5, "keydiff": 0.25, "oracle": 1.0}
    text = results.page(section, summary(methods, section.budgets))
    assert "whole cache 0.50" in text
    assert "10 contexts, 40 questions" in text
    assert "| snapkv:pool=5 | 0.25" in text
    assert "| kvp | 0.50" in text
    assert "- 12.5% kept: best baseline snapkv:pool=5, -0.25 [-0.25, -0.25] against kvp" in text


def test_results_compare_every_shipped_policy():
    assert results.POLICIES[0] == "kvp"
    for section in results.SECTIONS:
        assert {"kvp", f"kvp:{results.CALIBRATED}"}.intersection(section.methods)


def test_the_page_of_methods_gets_its_tables():
    found = {
        "cache": {"layers": 2, "heads": 3, "tokens": 64, "cache_mb": 1.5},
        "scorers": {
            "kvp": {"ms": 2.0, "mb": 1.0, "operators": 0.5},
            "knorm": {"ms": 1.0, "mb": 3.0, "operators": 4.0},
        },
        "allocators": {"uniform": 0.5},
        "evict_ms": 0.25,
    }
    page = f"# Title\n\n{methods.BEGIN.format('cost')}\n\nold\n\n{methods.END}\n\nrest\n"
    text = methods.put(page, "cost", methods.cost_table(found))
    assert "| knorm | 1.0 | 0.50 x | 3 | 4 |\n| kvp | 2.0 | 1.00 x | 1 | one call for all |" in text
    assert text.startswith("# Title\n")
    assert text.endswith("\n\nrest\n")
    assert "old" not in text
    assert methods.put(text, "cost", methods.cost_table(found)) == text
    with pytest.raises(ValueError, match="page: has no part <!-- quality"):
        methods.put(page, "quality", "")
    shipped = (BENCH.parent / "docs" / "methods.md").read_text()
    for part in ("cost", "quality"):
        methods.put(shipped, part, "")
    for name in python_ref.methods.methods():
        assert f"\n| {name} | " in shipped


def test_the_page_of_a_bounded_cache():
    steps = list(range(1, 401))
    records = [
        {
            "part": "generation", "prompt": 8, "new_tokens": 400, "budget": 16, "interval": 4,
            "ms": {bounded.FULL: [2.0 * t for t in steps], bounded.DEFAULT_POLICY: [1.0] * 400},
            "bytes": {bounded.FULL: [1e6 * t for t in steps], bounded.DEFAULT_POLICY: [5e5] * 400},
            "evictions": 100,
        },
        {"part": "perplexity", "text": "novel", "method": bounded.FULL, "budget": 0, "nll": 3.0},
        {"part": "perplexity", "text": "novel", "method": "knorm", "budget": 256, "nll": 3.5},
        {"part": "perplexity", "text": "novel", "method": "random", "budget": 256, "nll": 3.2},
    ]  # fmt: skip
    text = bounded.page(records)
    assert "| 201-400 | 601 | 400.0 | 1 | 0.5 | 0.00 |" in text
    assert "| all | full cache | 20.09 |\n| 256 | random | 24.53 |\n| 256 | knorm | 33.12 |" in text


def test_losses_in_blocks_are_those_of_one_forward():
    model = make("llama")
    ids = random_ids(150)
    cache = bounded.DynamicCache(config=model.config)
    found = bounded.losses(model, ids, cache)
    logits = model(torch.tensor([ids])).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    small = bounded.bounded(model, "knorm", 32, bounded.BLOCK)
    with small.attach(model):
        assert bounded.losses(model, ids, small).shape == found.shape
    assert small.evictions == 2
