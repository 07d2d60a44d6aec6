import dataclasses
import math

import pytest
import torch
from integrations.tiny_models import (
    CONFIGS,
    VOCAB,
    make_model,
    random_ids,
    reference_logits,
)

from kvp_ext.integrations import smollm2
from python_ref.attention import attention
from python_ref.data.document import Branch, Document
from python_ref.data.mixture import documents, question_inside
from python_ref.decoder import continue_from
from python_ref.evaluation import prefilled, runner, running
from python_ref.evaluation.contestants import (
    Contestant,
    by_method,
    contestant,
    contestants,
)
from python_ref.evaluation.eviction import evict
from python_ref.evaluation.plan import Plan
from python_ref.evaluation.prefilled import (
    Needs,
    prefill_document,
    prefill_further,
)
from python_ref.evaluation.ranking_cost import (
    best_by_score,
    relative_loss,
)
from python_ref.evaluation.runner import evaluate
from python_ref.evaluation.running import answers, generate
from python_ref.utility import relative_cost

N = 60
CONTEXT = tuple(random_ids(1, N)[0].tolist())
BRANCHES = (Branch((5, 9, 2, 7, 1), 2), Branch((8, 4, 30), 1), Branch((6, 11, 12, 13), 2))
DOCUMENT = Document("test", CONTEXT, BRANCHES)


class Words:
    """Every token is a word of its own."""

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return " ".join(f"w{i}." for i in ids)


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_model(CONFIGS[request.param])
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama():
    return make_model(CONFIGS["llama"])


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def plan(methods=("knorm", "oracle"), budgets=(0.5, 24), **options):
    return Plan("tiny", contestants(methods), budgets, **options)


def run(model, document, which, known=()):
    (records,) = evaluate(model, Words(), {"task": [document]}, which, known=known)
    return records


def rows(*caches):
    """k, v [L, R, H, T, D] of several caches of one length."""
    return (torch.stack([getattr(c, name) for c in caches], dim=1) for name in ("k", "v"))


# ---- the prefill -------------------------------------------------------------------------------


def test_a_prefill_keeps_what_methods_need(model):
    item = prefill_document(model, DOCUMENT, Needs(window=7, received=True))
    full = prefill_document(model, DOCUMENT, Needs(window=1000))
    config = model.config
    assert item.k.shape == (3, config.num_key_value_heads, N, 16)
    assert item.q.shape == (3, config.num_attention_heads, 7, 16)
    assert torch.equal(item.q, full.q[:, :, -7:])
    assert full.q.shape[2] == N
    assert not full.received.any()
    weights = torch.stack([attention(q, k) for q, k in zip(full.q, full.k, strict=True)])
    torch.testing.assert_close(item.received, weights.mean(dim=3 - 1).sum(dim=-2))
    # Every query hands out one unit of attention.
    torch.testing.assert_close(
        item.received.sum(dim=-1), torch.full(item.received.shape[:2], float(N))
    )


def test_queries_have_the_models_scale(llama):
    plain = prefill_document(llama, DOCUMENT, Needs(window=5))
    layer = llama.model.layers[0].self_attn
    before = layer.scaling
    layer.scaling = 3 * before
    try:
        scaled = prefill_document(llama, DOCUMENT, Needs(window=5))
    finally:
        layer.scaling = before
    torch.testing.assert_close(scaled.q[0], 3 * plain.q[0])


def test_a_prefill_goes_on_with_the_question(model):
    """Continuing a shared prefill is the same as one prefill of context and question."""
    needs = Needs(window=8, received=True)
    base = prefill_document(model, DOCUMENT, needs)
    inside = question_inside(DOCUMENT, 2)
    assert inside.context == (*CONTEXT, 6)
    assert inside.branches[0].ids == (11, 12, 13)
    for branch in range(3):
        inside = question_inside(DOCUMENT, branch)
        shared = prefill_further(model, base, inside, needs)
        fresh = prefill_document(model, inside, needs)
        for name in ("k", "v", "q", "received", "utility"):
            torch.testing.assert_close(
                getattr(shared, name), getattr(fresh, name), atol=2e-5, rtol=1e-4
            )
    assert base.k.shape[2] == N


def test_an_unrelated_document_is_prefilled_anew(llama):
    base = prefill_document(llama, DOCUMENT)
    other = Document("test", CONTEXT[::-1], BRANCHES[:1])
    found = prefill_further(llama, base, other)
    assert torch.equal(found.k, prefill_document(llama, other).k)


# ---- after eviction ----------------------------------------------------------------------------


def test_eviction_changes_answers_as_hiding_the_keys_from_them_would(model):
    """Every head keeps other entries; a forward without a cache hides the rest from it."""
    item = prefill_document(model, DOCUMENT)
    scores = torch.rand(item.k.shape[:3], generator=torch.Generator().manual_seed(1))
    left = evict(item.k, item.v, scores, 23, sinks=2, recent=5)
    assert len({tuple(kept.tolist()) for kept in left.kept.flatten(0, 1)}) > 1
    other = evict(item.k, item.v, -scores, 23, sinks=2, recent=5)
    for branch in BRANCHES:
        answer, another = answers(model, *rows(left, other), N, branch)
        ids = torch.tensor([CONTEXT + branch.ids])
        logits = reference_logits(model, ids, [(N, left.kept)])[0, -1 - branch.answer : -1]
        target = torch.tensor(branch.ids[-branch.answer :])
        expected = torch.nn.functional.cross_entropy(logits, target)
        assert answer.nll == pytest.approx(expected.item(), abs=1e-4)
        assert answer.hits == int((logits.argmax(-1) == target).sum())
        assert answer.nll != pytest.approx(another.nll, abs=1e-3)


def test_an_oracle_that_keeps_what_is_asked_for_gives_the_full_logits(llama):
    """Keys so long that each query attends to a single entry: those entries are the needles."""
    item = prefill_document(llama, DOCUMENT)
    sharp = 400 * item.k
    utility = prefilled.branch_utility(llama, sharp, item.v, BRANCHES)
    needles = (utility > 1e-6).sum(dim=-1)
    budget = int(needles.max())
    assert 0 < budget < N // 2

    def logits(k, v):
        ids = [branch.ids for branch in BRANCHES]
        rows = continue_from(llama, k, v, N, ids)
        return torch.cat([row[: len(branch)] for row, branch in zip(rows, ids, strict=True)])

    full = logits(sharp, item.v)
    kept = evict(sharp, item.v, utility, budget, sinks=0, recent=0)
    torch.testing.assert_close(logits(kept.k, kept.v), full, atol=1e-4, rtol=1e-4)
    worst = evict(sharp, item.v, -utility, budget, sinks=0, recent=0)
    assert (logits(worst.k, worst.v) - full).abs().max() > 0.1


def test_answers_are_what_greedy_decoding_says(model):
    item = prefill_document(model, DOCUMENT)
    ids = [5, 9, 2]
    for _ in range(3):
        ids.append(int(logits_of(model, [*CONTEXT, *ids])[-1].argmax()))
    wrong = [*ids[:-1], (ids[-1] + 1) % VOCAB]
    (right,) = answers(model, *rows(item), N, Branch(tuple(ids), 3))
    (other,) = answers(model, *rows(item), N, Branch(tuple(wrong), 3))
    assert (right.correct, right.hits) == (True, 3)
    assert (other.correct, other.hits) == (False, 2)
    logits = logits_of(model, [*CONTEXT, *ids])
    expected = torch.nn.functional.cross_entropy(logits[-4:-1], torch.tensor(ids[-3:]))
    assert right.nll == pytest.approx(expected.item(), rel=1e-3)
    said = generate(model, *rows(item), N, (5, 9, 2), 3)
    assert said == [ids[3:]]


def test_a_continuation_is_scored_from_its_second_token(llama):
    item = prefill_document(llama, DOCUMENT)
    (found,) = answers(llama, *rows(item), N, Branch((5, 9, 2), 3))
    assert found.tokens == 2
    logits = logits_of(llama, [*CONTEXT, 5, 9, 2])
    expected = torch.nn.functional.cross_entropy(logits[-3:-1], torch.tensor([9, 2]))
    assert found.nll == pytest.approx(expected.item(), rel=1e-4)


def test_generation_on_evicted_caches_takes_the_places_that_tokens_would_have_had(model):
    item = prefill_document(model, DOCUMENT)
    caches = [
        evict(item.k, item.v, by_method("random", seed=seed).score(item), 6, sinks=0, recent=0)
        for seed in range(4)
    ]
    question = (5, 9, 2)
    said = generate(model, *rows(*caches), N, question, 12)
    for cache, tokens in zip(caches, said, strict=True):
        ids = [*CONTEXT, *question]
        for _ in range(12):
            logits = reference_logits(model, torch.tensor([ids]), [(N, cache.kept)])
            ids.append(int(logits[0, -1].argmax()))
        assert tokens == ids[-12:]
    assert len({tuple(tokens) for tokens in said}) > 1


def test_generation_stops_and_fits_into_memory(llama, monkeypatch):
    item = prefill_document(llama, DOCUMENT)
    k = torch.stack([item.k, item.k, item.k], dim=1)
    v = torch.stack([item.v, item.v.flip(2), item.v], dim=1)
    said = generate(llama, k, v, N, (5, 9), 8)
    found = answers(llama, k, v, N, BRANCHES[0])
    monkeypatch.setattr(running, "BATCH_BYTES", 1)
    assert generate(llama, k, v, N, (5, 9), 8) == said
    for one, other in zip(found, answers(llama, k, v, N, BRANCHES[0]), strict=True):
        assert one.nll == pytest.approx(other.nll, rel=1e-5)
    assert found[0].nll != pytest.approx(found[1].nll, rel=1e-2)
    stop = said[0][4]
    first = said[0].index(stop)
    ended = generate(llama, k, v, N, (5, 9), 8, stop=(stop,))
    assert ended[0] == said[0][:first]
    assert stop not in ended[1]


# ---- records -----------------------------------------------------------------------------------


def test_a_budget_of_everything_is_the_whole_cache(llama):
    """Exactly, whatever the method: nothing is evicted."""
    document = dataclasses.replace(DOCUMENT, metric="string_match")
    which = plan(("knorm", "random"), (1.0, N, 500))
    full, *others = run(llama, document, which)
    assert full.method == "full"
    assert len(others) == 6
    for record in others:
        assert record.kept == full.kept == N
        for name in ("nll", "exact_match", "token_accuracy", "string_match"):
            assert record.metrics[name] == full.metrics[name]
        assert record.metrics["lost"] == record.metrics["lost_pinned"] == 1.0
    half = run(llama, document, plan(("knorm",), (0.5,)))[1]
    assert half.kept == N // 2
    assert half.metrics["nll"] != full.metrics["nll"]


def test_a_record_says_what_was_measured(llama):
    full, knorm, _, oracle, _ = run(llama, DOCUMENT, plan(sinks=2, recent=8))
    assert (full.task, full.kind, full.model, full.protocol) == ("task", "test", "tiny", "after")
    assert (full.n, full.kept, full.questions, full.tokens) == (N, N, 3, 5)
    assert (knorm.method, knorm.budget, knorm.kept) == ("knorm", 0.5, 30)
    assert (knorm.sinks, knorm.recent, knorm.allocator) == (2, 8, "uniform")
    item = prefill_document(llama, DOCUMENT)
    left = evict(item.k, item.v, by_method("knorm").score(item), 30, sinks=2, recent=8)
    found = [answers(llama, *rows(left), N, branch)[0] for branch in BRANCHES]
    assert knorm.metrics["nll"] == pytest.approx(sum(a.nll * a.tokens for a in found) / 5, rel=1e-5)
    assert knorm.metrics["exact_match"] == sum(a.correct for a in found) / 3
    scores = by_method("knorm").score(item)
    assert knorm.metrics["cost"] == pytest.approx(relative_cost(scores, item.utility).mean().item())
    assert knorm.metrics["lost_pinned"] == pytest.approx(relative_loss(item.utility, left.kept))
    assert oracle.metrics["cost"] == pytest.approx(1.0)
    assert oracle.metrics["lost"] == pytest.approx(1.0)
    assert oracle.metrics["cost_pinned"] == pytest.approx(1.0)
    # Pins take the place of better entries even for an oracle.
    assert oracle.metrics["lost_pinned"] > 1.01
    assert "cost" not in full.metrics


def test_a_question_inside_is_compressed_with_the_context(model):
    """Where nothing is evicted the answers are those of the whole sequence."""
    which = plan(("knorm",), (1.0, 0.5), protocols=("inside",))
    records = run(model, DOCUMENT, which)
    assert [(r.branch, r.method, r.budget) for r in records] == [
        (branch, method, budget)
        for branch in range(3)
        for method, budget in (("full", 1.0), ("knorm", 1.0), ("knorm", 0.5))
    ]
    for branch, (full, same, half) in zip(
        BRANCHES, (records[i : i + 3] for i in (0, 3, 6)), strict=True
    ):
        logits = logits_of(model, CONTEXT + branch.ids)[-1 - branch.answer : -1]
        target = torch.tensor(branch.ids[-branch.answer :])
        expected = torch.nn.functional.cross_entropy(logits, target).item()
        assert full.metrics["nll"] == pytest.approx(expected, abs=1e-4)
        assert full.metrics["exact_match"] == float((logits.argmax(-1) == target).all())
        assert same.metrics["nll"] == full.metrics["nll"]
        assert half.metrics["nll"] != pytest.approx(expected, abs=1e-4)
        assert full.n == full.kept == N + len(branch.question) - 1
        assert half.kept == math.floor(full.n / 2 + 0.5)
        assert full.questions == 1
        assert full.document == records[0].document


def test_generated_text_is_compared_with_the_references(llama):
    item = prefill_document(llama, DOCUMENT)
    said = generate(llama, *rows(item), N, (5, 9, 2), 10)[0]
    late, never = f"W{said[8]}.", "nothing"
    branches = (
        Branch((5, 9, 2, 7, 1), 2, references=(late, never)),
        Branch((5, 9, 2, said[0]), 1),  # Its answer is what the model says, so it is found.
    )
    expected = {"string_match": 0.75, "string_match_any": 1.0}
    for metric, value in expected.items():
        document = Document("test", CONTEXT, branches, metric=metric)
        (full,) = run(llama, document, plan((), ()))
        assert full.metrics[metric] == value
    document = Document("test", CONTEXT, branches[:1], metric="rouge_l")
    (full,) = run(llama, document, plan((), ()))
    # One word of the ten that 2 + 8 tokens make, and the one of the reference.
    assert full.metrics["rouge_l"] == pytest.approx(2 / 11)


@pytest.mark.parametrize(
    ("metric", "references", "generated"),
    [("string_match", (), 0), ("string_match", ("else",), 1), ("rouge_l", (), 1)],
)
def test_a_text_that_starts_with_the_answer_need_not_be_generated(
    llama, monkeypatch, metric, references, generated
):
    item = prefill_document(llama, DOCUMENT)
    said = generate(llama, *rows(item), N, (5, 9, 2), 10)[0]
    asked = []

    def counted(model, k, *options):
        asked.append(k.shape[1])
        return generate(model, k, *options)

    monkeypatch.setattr(runner, "generate", counted)
    right = Branch((5, 9, 2, *said[:2]), 2, references=references)
    wrong = Branch((5, 9, 2, said[0], said[0]), 2, references=references)
    document = Document("test", CONTEXT, (right,), metric=metric)
    (full,) = run(llama, document, plan((), ()))
    assert sum(asked) == generated
    # ROUGE-L counts the words that come after the answer: 2 of 10 are right.
    expected = {"rouge_l": 2 * 2 / 12, "string_match": float(not references)}
    assert full.metrics[metric] == pytest.approx(expected[metric])
    asked.clear()
    run(llama, dataclasses.replace(document, branches=(wrong,)), plan((), ()))
    assert asked == [1]


def test_running_text_has_a_perplexity_and_no_question_inside(llama):
    text = Document("novel", CONTEXT, (Branch((5, 9, 2, 8), 4),), metric="perplexity")
    records = run(llama, text, plan(("knorm",), (0.5,), protocols=("after", "inside")))
    assert [r.protocol for r in records] == ["after", "after"]
    assert records[0].tokens == 3
    assert "exact_match" not in records[0].metrics
    logits = logits_of(llama, (*CONTEXT, 5, 9, 2, 8))
    expected = torch.nn.functional.cross_entropy(logits[-4:-1], torch.tensor([9, 2, 8]))
    assert records[0].metrics["nll"] == pytest.approx(expected.item(), rel=1e-4)


def test_one_prefill_serves_everything(llama, monkeypatch):
    calls = []
    whole = prefilled.prefill

    def counted(model, ids, **options):
        calls.append(len(ids))
        return whole(model, ids, **options)

    monkeypatch.setattr(prefilled, "prefill", counted)
    which = plan(("knorm", "h2o", "snapkv"), (0.5, 0.25), protocols=("after", "inside"))
    records = run(llama, DOCUMENT, which)
    assert len(records) == 4 * (1 + 3 * 2)
    assert calls == [N]


def test_what_is_known_is_not_computed_again(llama, monkeypatch):
    first = plan(("knorm",), (0.5,))
    known = run(llama, DOCUMENT, first)
    more = plan(("knorm", "h2o"), (0.5, 0.25))
    new = run(llama, DOCUMENT, more, known)
    assert [(r.method, r.budget) for r in new] == [("knorm", 0.25), ("h2o", 0.5), ("h2o", 0.25)]
    everything = {r.key: r for r in run(llama, DOCUMENT, more)}
    assert {r.key for r in known + new} == set(everything)
    for record in known + new:
        assert record.metrics == pytest.approx(everything[record.key].metrics, rel=1e-4)

    def never(*args, **options):
        raise AssertionError("prefilled again")

    monkeypatch.setattr(prefilled, "prefill", never)
    assert run(llama, DOCUMENT, more, known + new) == []
    with pytest.raises(AssertionError, match="prefilled again"):
        run(llama, dataclasses.replace(DOCUMENT, kind="other"), more, known + new)


# ---- the ranking's own cost --------------------------------------------------------------------


def test_costs_against_hand_computed_values():
    utility = torch.tensor([[0.4, 0.1, 0.3, 0.2]])
    scores = torch.tensor([[1.0, 2.0, 3.0, 4.0]])  # ranks 3, 2, 1, 0
    ideal = 1 * 0.4 + 2 * 0.3 + 3 * 0.2 + 4 * 0.1
    assert relative_cost(scores, utility).item() == pytest.approx(
        (1 * 0.2 + 2 * 0.3 + 3 * 0.1 + 4 * 0.4) / ideal
    )
    # Two pins first, by score: 3, 0, then 2, 1; by utility: 0, 3, then 2, 1.
    assert relative_cost(scores, utility, sinks=1, recent=1).item() == pytest.approx(
        (1 * 0.2 + 2 * 0.4 + 3 * 0.3 + 4 * 0.1) / (1 * 0.4 + 2 * 0.2 + 3 * 0.3 + 4 * 0.1)
    )
    assert best_by_score(scores, torch.tensor([2])).tolist() == [[3, 2]]
    assert relative_loss(utility, torch.tensor([[3, 2]])) == pytest.approx(0.5 / 0.3)
    assert relative_loss(utility, torch.tensor([[0, 2]])) == pytest.approx(1.0)
    assert relative_loss(utility, torch.tensor([[0, 1, 2, 3]])) == 1.0


def test_losses_are_summed_over_heads_before_dividing():
    utility = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.3, 0.1]])
    kept = torch.tensor([[0, 1], [1, 2]])
    assert relative_loss(utility, kept) == pytest.approx(0.6 / 0.1)
    nothing = torch.tensor([[0.5, 0.5, 0.0]])
    assert relative_loss(nothing, torch.tensor([[0, 2]])) == 200.0


# ---- mistakes ----------------------------------------------------------------------------------


def test_a_sliding_window_is_refused(llama):
    config = CONFIGS["mistral"].__class__(**CONFIGS["mistral"].to_dict() | {"sliding_window": 62})
    windowed = make_model(config)
    with pytest.raises(ValueError, match=r"kind 'test': has 65 tokens, expected at most 62"):
        prefill_document(windowed, DOCUMENT)
    short = Document("test", CONTEXT[:57], BRANCHES)
    assert prefill_document(windowed, short).k.shape[2] == 57


def test_wrong_plans_are_told():
    with pytest.raises(ValueError, match="protocol: got 'before', expected one of after, inside"):
        plan(protocols=("before",))
    twice = [contestant("knorm"), Contestant("knorm", lambda item: item.utility)]
    with pytest.raises(ValueError, match="expected different names"):
        Plan("tiny", twice, (0.5,))
    with pytest.raises(ValueError, match="none 'full'"):
        Plan("tiny", [by_method("knorm", "full")], (0.5,))


def test_wrong_metrics_are_told():
    with pytest.raises(ValueError, match="kind 'test': has metric 'bleu', expected one of exact"):
        plan().runs("task", dataclasses.replace(DOCUMENT, metric="bleu"))
    silent = Document("test", CONTEXT, (Branch((5, 9), 2),), metric="rouge_l")
    with pytest.raises(ValueError, match="a branch has no question"):
        plan().runs("task", silent)


# ---- a real model ------------------------------------------------------------------------------


@pytest.mark.model
def test_a_real_model_finds_a_needle_where_it_was_kept():
    model, tokenizer = smollm2.load()
    (document,) = documents(
        tokenizer, {"ruler/niah_single_1": 1.0}, 1, lengths=(400, 400), split="dev", seed=1
    )
    which = plan(("kvp", "oracle", "streaming_llm"), (0.25,))
    (records,) = evaluate(model, tokenizer, {"task": [document]}, which)
    found = {r.method: (r.metrics["string_match"], r.metrics["exact_match"]) for r in records}
    assert found["full"] == found["oracle"] == found["kvp"] == (1.0, 1.0)
    assert found["streaming_llm"] == (0.0, 0.0)
