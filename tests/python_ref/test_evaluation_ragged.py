"""Evaluation on caches whose rows are unequally long, against full caches with keys hidden."""

import dataclasses

import families
import pytest
import torch
from integrations.tiny_models import CONFIGS, make_model, random_ids, reference_logits

import kvp_ext
from python_ref.allocators import allocators
from python_ref.data.document import Branch, Document
from python_ref.decoder import forward
from python_ref.evaluation import runner, running
from python_ref.evaluation.allocation import (
    UNIFORM,
    Allocation,
    allocation,
    allocations,
    check_rows,
    unlike_scores,
)
from python_ref.evaluation.contestants import contestants
from python_ref.evaluation.eviction import evict
from python_ref.evaluation.plan import Plan
from python_ref.evaluation.prefilled import prefill_document
from python_ref.evaluation.ragged import ragged
from python_ref.evaluation.ranking_cost import best_by_score, relative_loss
from python_ref.evaluation.runner import evaluate, side_by_side
from python_ref.evaluation.running import answers, generate
from python_ref.model_info import inspect_model

N = 60
CONTEXT = tuple(random_ids(1, N)[0].tolist())
BRANCHES = (Branch((5, 9, 2, 7, 1), 2), Branch((8, 4, 30), 1))
DOCUMENT = Document("test", CONTEXT, BRANCHES)
RAGGED = [name for name in allocators() if name != "uniform"]


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_model(CONFIGS[request.param])
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama():
    return make_model(CONFIGS["llama"])


def unequal_scores(item, seed=1):
    """Scores whose level differs between heads, so that budgets do."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randn(*item.k.shape[:2], 1, generator=generator)
    return torch.randn(item.k.shape[:3], generator=generator) + level


def cached(model, name, budget=17, seed=1):
    item = prefill_document(model, DOCUMENT)
    rules = {"sinks": 1, "recent": 2, "allocator": allocation(name)}
    return evict(item.k, item.v, unequal_scores(item, seed), budget, **rules)


def hidden_keys(left):
    """What was kept, as `reference_logits` takes it: a slot may be named twice."""
    return left.kept.where(left.kept >= 0, left.kept[..., :1])


@pytest.mark.parametrize("name", RAGGED)
def test_logits_are_those_of_the_full_cache_with_evicted_keys_hidden(model, name):
    left = cached(model, name)
    layers, heads, _ = left.kept.shape
    assert left.lengths.sum() == 17 * layers * heads
    # One head in a layer has nobody to compete with.
    assert (left.lengths.min() < left.lengths.max()) == (name != "adakv" or heads > 1)
    assert left.lengths.max() == left.k.shape[2]
    k, v, lengths = side_by_side([left])
    cache = running._cache_of(model, k, v)
    found, new = [], ((5, 9, 2), (7,), (1, 3))
    position = N
    with torch.no_grad(), ragged(model, lengths, k.shape[3]):
        for ids in new:  # several tokens, then one, then several on a cache that has grown
            found.append(forward(model, torch.tensor([ids]), cache, position).logits[0])
            position += len(ids)
    ids = torch.tensor([[*CONTEXT, *(token for ids in new for token in ids)]])
    expected = reference_logits(model, ids, [(N, hidden_keys(left))])[0, N:]
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-4, rtol=0)


def test_one_batch_of_caches_of_different_shapes(model, monkeypatch):
    """Each as if it were alone, whatever stands in the padding and however they are batched."""
    caches = [cached(model, name, seed=seed) for seed, name in enumerate(RAGGED)]
    caches += [cached(model, "model", budget=9), cached(model, "uniform")]
    assert len({cache.k.shape[2] for cache in caches}) > 2
    alone = []
    for cache in caches:
        k, v, lengths = side_by_side([cache])
        said = generate(model, k, v, N, (5, 9, 2), 6, (), lengths)
        alone.append((answers(model, k, v, N, BRANCHES[0], lengths)[0], said[0]))
        ids = torch.tensor([CONTEXT + BRANCHES[0].ids])
        logits = reference_logits(model, ids, [(N, hidden_keys(cache))])[0, -3:-1]
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor([7, 1]))
        assert alone[-1][0].nll == pytest.approx(expected.item(), abs=1e-4)
    k, v, lengths = side_by_side(caches)
    padding = torch.arange(k.shape[3]) >= lengths[..., None]
    k, v = (x.masked_fill(padding[..., None], 1e4) for x in (k, v))
    for size in (running.BATCH_BYTES, 1):
        monkeypatch.setattr(running, "BATCH_BYTES", size)
        found = answers(model, k, v, N, BRANCHES[0], lengths)
        said = generate(model, k, v, N, (5, 9, 2), 6, (), lengths)
        for answer, text, (own, own_text) in zip(found, said, alone, strict=True):
            assert answer.nll == pytest.approx(own.nll, abs=1e-4)
            assert text == own_text
    assert len({round(answer.nll, 3) for answer in found}) > 3


def test_equal_rows_need_no_lengths(llama):
    left = cached(llama, "uniform")
    *_, lengths = side_by_side([left, left])
    assert lengths is None
    assert bool((left.lengths == 17).all())


@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "qwen2", "llama"])
def test_capped_logits_and_learned_sinks_stay_what_they_are(family):
    """Rows of one length with padding behind them, against that cache without padding."""
    model = families.make(family)
    ids = families.random_ids(7)
    item = prefill_document(model, Document("test", tuple(ids), (Branch((5, 9), 1),)))
    k, v = item.k[:, None], item.v[:, None]
    longer = [torch.nn.functional.pad(x, (0, 0, 0, 4), value=3.0) for x in (k, v)]
    lengths = torch.full((families.LAYERS, 1, k.shape[2]), 7)
    tokens = torch.tensor([[5, 9, 3]])
    with torch.no_grad():
        plain = forward(model, tokens, running._cache_of(model, k, v), 7).logits
        with ragged(model, lengths, 11):
            found = forward(model, tokens, running._cache_of(model, *longer), 7).logits
        with ragged(model, lengths + 1, 11):
            other = forward(model, tokens, running._cache_of(model, *longer), 7).logits
    torch.testing.assert_close(found, plain, atol=1e-4, rtol=1e-4)
    assert (other - plain).abs().max() > 1e-3


def test_the_models_own_attention_comes_back(llama):
    lengths = torch.full((3, 1, 2), 5)
    before = llama.config._attn_implementation
    k, v = torch.randn(2, 3, 1, 2, 9, 16)

    @torch.no_grad()
    def logits():
        return forward(llama, torch.tensor([[3, 7]]), running._cache_of(llama, k, v), 20).logits

    with ragged(llama, None, 9):
        assert llama.config._attn_implementation == before
    with ragged(llama, lengths, 9):
        inside = llama.config._attn_implementation
        assert inside != before
        outer = logits()
        with ragged(llama, lengths + 1, 9):
            assert (logits() - outer).abs().max() > 1e-3
        assert llama.config._attn_implementation == inside
        assert torch.equal(logits(), outer)
    assert llama.config._attn_implementation == before
    with pytest.raises(ArithmeticError), ragged(llama, lengths, 9):
        raise ArithmeticError
    assert llama.config._attn_implementation == before
    llama.config._attn_implementation = inside
    try:
        with pytest.raises(RuntimeError, match="is for forwards within `replaced_attention`"):
            llama(torch.tensor([[1, 2]]))
    finally:
        llama.config._attn_implementation = before


# ---- records -----------------------------------------------------------------------------------


class Words:
    def decode(self, ids, skip_special_tokens):
        return " ".join(f"w{i}." for i in ids)


def run(model, plan, document=DOCUMENT):
    (records,) = evaluate(model, Words(), {"task": [document]}, plan)
    return records


def test_records_of_every_allocator(model):
    methods = contestants(["knorm", "oracle"])
    rules = {"sinks": 1, "recent": 2}
    shared = allocations(["uniform", *RAGGED, "pyramid:beta=3"])
    records = run(model, Plan("tiny", methods, (0.25, 1.0), **rules, allocators=shared))
    alone = run(model, Plan("tiny", methods, (0.25, 1.0), **rules))
    assert len(records) == 1 + 2 * 5 * 2
    assert alone == [r for r in records if r.allocator == "uniform"]
    full = records[0]
    assert (full.method, full.allocator) == ("full", "uniform")
    item = prefill_document(model, DOCUMENT)
    for record in records[1:]:
        assert record.kept == (15 if record.budget == 0.25 else N)
        assert record.fingerprint == ""
        if record.budget == 1.0:
            assert record.metrics["nll"] == full.metrics["nll"]
            assert record.metrics["lost"] == record.metrics["lost_pinned"] == 1.0
            continue
        if record.allocator != "uniform":
            assert 15 + (record.allocator != "adakv") <= record.metrics["longest"] <= N
        one = next(c for c in methods if c.name == record.method)
        how = allocation(record.allocator)
        left = evict(item.k, item.v, one.score(item), 15, **rules, allocator=how)
        k, v, lengths = side_by_side([left])
        found = [answers(model, k, v, N, branch, lengths)[0] for branch in BRANCHES]
        nll = sum(a.nll * a.tokens for a in found) / 3
        assert record.metrics["nll"] == pytest.approx(nll, rel=1e-4)
    lost = {r.allocator: r.metrics["lost_pinned"] for r in records if r.method == "oracle"}
    by_oracle = {
        r.allocator: r.metrics["lost_pinned"]
        for r in records
        if (r.method, r.budget) == ("oracle", 0.25)
    }
    # All scores on one scale, and no better choice of as many entries than the model's best.
    assert by_oracle["model"] == min(by_oracle.values())
    assert by_oracle["uniform"] > by_oracle["model"]
    assert lost["uniform"] == 1.0


def test_generated_text_on_unequal_rows(llama, monkeypatch):
    """What is right from the first token on need not be said, and the others keep their rows."""
    item = prefill_document(llama, DOCUMENT)
    rankings = [unequal_scores(item, seed) for seed in range(3)]
    caches = [cached(llama, "model", seed=seed) for seed in range(3)]
    said = []
    for cache in caches:
        k, v, lengths = side_by_side([cache])
        said.append(generate(llama, k, v, N, (5, 9, 2), 9, (), lengths)[0])
    first = [tokens[0] for tokens in said]
    (right,) = (i for i in range(3) if first.count(first[i]) == 1)
    others = [cache.lengths for i, cache in enumerate(caches) if i != right]
    assert not torch.equal(*others)
    asked = []

    def watched(model, k, v, position, question, tokens, stop, lengths):
        asked.append(lengths)
        return generate(model, k, v, position, question, tokens, stop, lengths)

    monkeypatch.setattr(runner, "generate", watched)
    (knorm,) = contestants(["knorm"])
    ranked = [
        dataclasses.replace(knorm, name=f"by {i}", score=lambda item, scores=scores: scores)
        for i, scores in enumerate(rankings)
    ]
    rules = {"sinks": 1, "recent": 2, "allocators": [allocation("model")]}
    plan = Plan("tiny", ranked, (17,), **rules)
    branches = (Branch((5, 9, 2, first[right]), 1),)
    document = Document("test", CONTEXT, branches, metric="string_match")
    found = run(llama, plan, document)[1:]
    expected = [float(first[right] in tokens) for tokens in said]
    assert [r.metrics["string_match"] for r in found] == expected
    (rows,) = (lengths for lengths in asked if lengths is not None)
    assert torch.equal(rows, torch.stack(others, dim=1))


def test_losses_of_unequal_rows_are_measured_against_equal_ones():
    utility = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.05, 0.05, 0.0, 0.0]])
    equal = torch.tensor([[0, 1], [0, 1]])
    assert relative_loss(utility, equal) == pytest.approx(1.0)
    assert relative_loss(utility, torch.tensor([[0, 1, 2], [0, -1, -1]])) == pytest.approx(
        0.15 / 0.2
    )
    assert relative_loss(utility, torch.tensor([[3, -1, -1], [0, 1, 2]])) == pytest.approx(
        0.9 / 0.2
    )
    best = best_by_score(utility, torch.tensor([3, 1]))
    assert best.tolist() == [[0, 1, 2], [0, -1, -1]]


# ---- names -------------------------------------------------------------------------------------


def shares_file(path, layers=3, heads=2, **more):
    policy = kvp_ext.Policy.random(layers=layers, kv_heads=heads, head_dim=16)
    rows = [[1.5] + [0.5] * (heads - 1)] * layers
    policy.provenance |= {"shares": {"0.25": rows}, "calibration": {}} | more
    policy.save(path)
    return path


def test_shares_of_a_policy(llama, tmp_path):
    how = allocation(f"share:{shares_file(tmp_path / 'a.safetensors')}")
    assert (how.rows, len(how.fingerprint)) == ((3, 2), 16)
    budgets = how.budgets(torch.randn(3, 2, N), 20, sinks=0, recent=0)
    assert budgets.tolist() == [[30, 10]] * 3
    check_rows([UNIFORM, how], inspect_model(llama, "tiny"))
    (knorm,) = contestants(["knorm"])
    runs = Plan("tiny", [knorm], (0.5,), allocators=[UNIFORM, how]).runs("task", DOCUMENT)
    assert [r.fingerprint for r in runs] == ["", "", how.fingerprint]
    other = shares_file(tmp_path / "b.safetensors", shares={"0.25": [[1.0, 1.0]] * 3})
    assert allocation(f"share:{other}").fingerprint != how.fingerprint


def test_all_is_every_allocator_and_the_shipped_shares():
    names = [one.name for one in allocations(["pyramid:beta=3", "all", "uniform"])]
    assert names == ["pyramid:beta=3", "uniform", *RAGGED, "share"]


def test_mistakes_are_told(llama, tmp_path):
    path = tmp_path / "a.safetensors"
    kvp_ext.Policy.random(layers=3, kv_heads=2, head_dim=16).save(path)
    with pytest.raises(ValueError, match="a.safetensors' carries no shares, expected one made by"):
        allocation(f"share:{path}")
    with pytest.raises(ValueError, match="allocator: got 'fair', expected one of adakv, model"):
        allocation("fair")
    with pytest.raises(ValueError, match="'pyramid:b=2' has option 'b', expected one of: beta"):
        allocation("pyramid:b=2")
    with pytest.raises(ValueError, match="has beta='steep', expected a number"):
        allocation("pyramid:beta=steep")
    wrong = allocation(f"share:{shares_file(path, layers=4)}")
    with pytest.raises(ValueError, match="4 layers x 2 KV heads, expected 3 x 2 as in tiny"):
        check_rows([wrong], inspect_model(llama, "tiny"))
    with pytest.raises(ValueError, match="expected different names, at least one"):
        Plan("tiny", [], (0.5,), allocators=[UNIFORM, UNIFORM])
    with pytest.raises(ValueError, match="expected different names, at least one"):
        Plan("tiny", [], (0.5,), allocators=[])


def test_competing_scores_that_are_no_common_scale_are_told(tmp_path):
    calibrated = f"kvp:{shares_file(tmp_path / 'a.safetensors')}"
    plain = tmp_path / "b.safetensors"
    kvp_ext.Policy.random(layers=3, kv_heads=2, head_dim=16).save(plain)
    methods = ["snapkv:pool=7", "keydiff", calibrated, f"kvp:{plain}"]
    assert unlike_scores(methods, [UNIFORM, allocation("pyramid")]) == []
    layer, model = unlike_scores(methods, [allocation("adakv"), allocation("model")])
    assert layer.startswith("adakv compares scores across a layer; those of keydiff, kvp:")
    assert "calibrated" not in layer
    assert "snapkv" not in model
    assert isinstance(UNIFORM, Allocation)
