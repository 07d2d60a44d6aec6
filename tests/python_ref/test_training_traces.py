import pytest
import torch

transformers = pytest.importorskip("transformers")

from python_ref import evaluation  # noqa: E402
from python_ref.data.documents import Branch, Document  # noqa: E402
from python_ref.decoder import continue_from, prefill  # noqa: E402
from python_ref.training.traces import Trace, branch_utility, collect, trace  # noqa: E402

CONTEXT = tuple(range(3, 33))
BRANCHES = (Branch((5, 9, 2, 7, 1), 2), Branch((8, 4, 30), 1))
DOCUMENT = Document("test", CONTEXT, BRANCHES, ((4, 7), (20, 21)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


def eager(model, ids):
    """Logits and attentions [L, Hq, T, T] of one sequence, without any cache."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_attentions=True)
    model.config._attn_implementation = before
    return output.logits[0], torch.stack([layer[0] for layer in output.attentions])


def test_utility_is_the_attention_of_the_branches(model):
    k, v = prefill(model, CONTEXT)
    n = len(CONTEXT)
    expected = torch.zeros(2, 2, n)
    for branch in BRANCHES:
        _, attention = eager(model, CONTEXT + branch.ids)
        group = attention.unflatten(1, (2, 3)).amax(dim=2)[..., n:, :n]
        expected += group.mean(dim=-2) / len(BRANCHES)
    torch.testing.assert_close(branch_utility(model, k, v, BRANCHES), expected)


def test_branches_continue_the_context(model):
    k, v = prefill(model, CONTEXT)
    assert k.shape == v.shape == (2, 2, 30, 8)
    kept = k.clone()
    logits = continue_from(model, k, v, len(CONTEXT), [branch.ids for branch in BRANCHES])
    for row, branch in zip(logits, BRANCHES, strict=True):
        expected, _ = eager(model, CONTEXT + branch.ids)
        torch.testing.assert_close(
            row[: len(branch.ids)], expected[len(CONTEXT) :], atol=1e-4, rtol=1e-4
        )
    assert torch.equal(k, kept)


def test_observing_leaves_the_model_as_it_was(model):
    before = model.config._attn_implementation
    seen = []
    plain = prefill(model, CONTEXT)
    observed = prefill(model, CONTEXT, observer=lambda layer, q, k: seen.append((layer, q.shape)))
    assert seen == [(0, (1, 6, 30, 8)), (1, (1, 6, 30, 8))]
    assert all(torch.equal(a, b) for a, b in zip(plain, observed, strict=True))
    assert model.config._attn_implementation == before
    with pytest.raises(ZeroDivisionError):
        prefill(model, CONTEXT, observer=lambda layer, q, k: 1 / 0)
    assert model.config._attn_implementation == before


def test_a_trace_survives_its_file(model, tmp_path):
    made = trace(model, DOCUMENT)
    made.save(tmp_path / "a.safetensors")
    loaded = Trace.load(tmp_path / "a.safetensors")
    assert loaded.kind == "test"
    assert loaded.k.dtype == torch.float16
    for name in ("k", "v", "utility", "marked"):
        assert torch.equal(getattr(loaded, name), getattr(made, name))
    assert made.marked.nonzero().squeeze(1).tolist() == [4, 5, 6, 20]


def test_collecting_goes_on_where_it_stopped(model, tmp_path):
    (first,) = collect(model, [DOCUMENT], tmp_path)
    stamp = first.stat().st_mtime_ns
    paths = collect(model, [Document("more", CONTEXT[:9], BRANCHES), DOCUMENT], tmp_path)
    assert [Trace.load(path).kind for path in paths] == ["more", "test"]
    assert paths[1] == first
    assert first.stat().st_mtime_ns == stamp


def test_eviction_changes_what_follows_as_masking_would(model):
    item = evaluation.prefill_document(model, DOCUMENT)
    assert item.q.shape == (2, 6, 30, 8)
    everything = evaluation.evict(item.k, item.v, item.utility, 30)
    assert torch.equal(everything[0], item.k)

    # With one head per layer left alone, a mask over the prompt cannot express this eviction, so
    # the same slots are dropped in every head, which it can.
    scores = torch.zeros(2, 2, 30)
    scores[..., 10:15] = 1
    k, v = evaluation.evict(item.k, item.v, scores, 11, sinks=2, recent=4)
    slots = [0, 1, *range(10, 15), 26, 27, 28, 29]
    assert torch.equal(k, item.k[:, :, slots])
    logits = continue_from(model, k, v, 30, [BRANCHES[0].ids])
    mask = torch.full((1, 1, 5, 35), -torch.inf)
    mask[..., slots] = 0
    mask[..., 30:] = torch.full((5, 5), -torch.inf).triu(1)
    full = transformers.DynamicCache()
    for layer in range(2):
        full.update(item.k[layer][None], item.v[layer][None], layer)
    name = "cache" if "cache" in model.forward.__code__.co_varnames else "past_key_values"
    with torch.no_grad():
        expected = model(
            torch.tensor([BRANCHES[0].ids]),
            attention_mask=mask,
            position_ids=torch.arange(30, 35)[None],
            **{name: full},
        ).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_answers_are_what_greedy_decoding_would_say(model):
    item = evaluation.prefill_document(model, DOCUMENT)
    question = (5, 9, 2)
    ids = list(question)
    for _ in range(3):
        logits, _ = eager(model, CONTEXT + tuple(ids))
        ids.append(int(logits[-1].argmax()))
    wrong = [*ids[:-1], (ids[-1] + 1) % 64]
    right, other = evaluation.answers(
        model, item.k, item.v, 30, [Branch(tuple(ids), 3), Branch(tuple(wrong), 3)]
    )
    assert (right.correct, other.correct) == (True, False)
    logits, _ = eager(model, CONTEXT + tuple(ids))
    expected = torch.nn.functional.cross_entropy(logits[-4:-1], torch.tensor(ids[-3:]))
    assert right.nll == pytest.approx(expected.item(), rel=1e-3)
    assert right.tokens == 3


def test_evaluation_compares_all_methods_on_one_prefill(model):
    item = evaluation.prefill_document(model, DOCUMENT)
    scorers = {name: evaluation.by_method(name) for name in ("oracle", "streaming_llm", "snapkv")}
    results = evaluation.evaluate(model, [item], scorers, [1.0, 0.5], sinks=1, recent=2)
    full = results["full", 1.0]
    assert len(results) == 7
    for name in scorers:
        assert [a.nll for a in results[name, 1.0]] == pytest.approx([a.nll for a in full])
        assert [a.nll for a in results[name, 0.5]] != pytest.approx([a.nll for a in full])
    assert evaluation.cost_ratio(scorers["oracle"], [item]) == pytest.approx(1.0)
    assert evaluation.cost_ratio(scorers["streaming_llm"], [item]) > 1.0


def test_summaries():
    answers = [evaluation.Answer(True, 1.0, 1), evaluation.Answer(False, 2.0, 3)]
    assert evaluation.exact_match(answers) == 0.5
    assert evaluation.perplexity(answers) == pytest.approx(torch.tensor(7 / 4).exp().item())
    # Newcombe (1998), table I: 81 of 263.
    assert evaluation.wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
