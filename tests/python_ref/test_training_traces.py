import dataclasses
import math

import pytest
import torch
from families import FAMILIES, eager, make, random_ids

from python_ref.data.documents import Branch, Document
from python_ref.decoder import generate, prefill
from python_ref.training.traces import (
    TraceOptions,
    branch_utility,
    document_digest,
    is_running_text,
    split_points,
    trace,
)
from python_ref.utility import utility


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny models spend their time on waking threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


CONTEXT = tuple(random_ids(30, 7))
BRANCHES = (Branch((5, 9, 2, 7, 1), 2), Branch((8, 4, 30), 1, weight=3.0))
QUESTIONS = Document("test", CONTEXT, BRANCHES, ((4, 7), (20, 21)))


def text(context, continuation, seed=0):
    ids = tuple(random_ids(context + continuation, seed))
    branch = Branch(ids[context:], continuation)
    return Document("essay", ids[:context], (branch,), metric="perplexity")


def group_attention(model, ids):
    """A [L, H, T, T] as the model itself gives it."""
    _, attention = eager(model, ids)
    return attention.unflatten(1, (model.config.num_key_value_heads, -1)).amax(dim=2)


def expected_utility(model, document, answer_share=0.6):
    n = len(document.context)
    result = 0.0
    for branch in document.branches:
        received = group_attention(model, document.context + branch.ids)[..., n:, :n]
        mean = received.mean(dim=-2)
        if branch.answer < len(branch.ids):
            asked = len(branch.ids) - branch.answer
            predicting = received[..., asked - 1 : asked - 1 + branch.answer, :].mean(dim=-2)
            mean = (1 - answer_share) * mean + answer_share * predicting
        result = result + branch.weight * mean
    return result / sum(branch.weight for branch in document.branches)


@pytest.mark.parametrize("family", FAMILIES)
def test_utility_of_questions_is_the_models_own_attention(family):
    model = make(family)
    made = trace(model, QUESTIONS)
    expected = expected_utility(model, QUESTIONS)
    assert made.splits == (30,)
    torch.testing.assert_close(made.utilities, (expected,), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.utility, expected, atol=1e-5, rtol=0)
    k, v = prefill(model, CONTEXT, watcher=lambda call: None)
    assert torch.equal(made.k, k.half())
    assert torch.equal(made.v, v.half())
    assert made.marked.nonzero().squeeze(1).tolist() == [4, 5, 6, 20]


@pytest.mark.parametrize("family", FAMILIES)
def test_utility_at_every_split_is_the_models_own_attention(family):
    model = make(family)
    document = text(190, 40)
    made = trace(model, document, horizon=25, splits=5)
    assert len(made.splits) > 3
    assert made.splits[-1] == 190
    attention = group_attention(model, document.context + document.branches[0].ids)
    for split, measured in zip(made.splits, made.utilities, strict=True):
        expected = attention[:, :, split : split + 25, :split].mean(dim=2)
        torch.testing.assert_close(measured, expected, atol=1e-5, rtol=0)
    k, _ = prefill(model, document.context)
    torch.testing.assert_close(made.k, k.half(), atol=2e-3, rtol=2e-3)


def test_the_future_ends_with_the_text():
    model = make("llama")
    document = text(150, 10)
    made = trace(model, document, horizon=25)
    attention = group_attention(model, document.context + document.branches[0].ids)
    expected = attention[:, :, 150:160, :150].mean(dim=2)
    torch.testing.assert_close(made.utility, expected, atol=1e-5, rtol=0)


def test_it_is_the_utility_of_the_definition_as_a_mean():
    model = make("qwen2")
    document = text(60, 20)
    ids = document.context + document.branches[0].ids
    calls = []
    k, _ = prefill(model, ids, watcher=calls.append)
    q = torch.stack([call.query[0, :, 60:] for call in calls])
    torch.testing.assert_close(trace(model, document).utility, utility(q, k) / 20)


@pytest.mark.parametrize("answer_share", [0.0, 0.25, 1.0])
def test_the_share_of_the_queries_that_predict_the_answer(answer_share):
    model = make("llama")
    made = trace(model, QUESTIONS, TraceOptions(answer_share=answer_share)).utility
    expected = expected_utility(model, QUESTIONS, answer_share)
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    assert (made - expected_utility(model, QUESTIONS, 0.6)).abs().max() > 1e-3
    document = text(150, 20)
    same = trace(model, document, TraceOptions(answer_share=answer_share))
    assert torch.equal(same.utility, trace(model, document).utility)


def test_many_branches_are_the_mean_of_their_batches():
    model = make("qwen3")
    branches = [Branch(tuple(random_ids(2 + i, i)), 1, weight=1.0 + (i % 3)) for i in range(11)]
    k, v = prefill(model, CONTEXT)
    expected = expected_utility(model, Document("x", CONTEXT, tuple(branches)), answer_share=0)
    torch.testing.assert_close(branch_utility(model, k, v, branches), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models(dtype):
    """Keys are kept as the model has them, and weights are not rounded to its dtype."""
    model, document = make("llama", dtype), text(150, 40)
    made = trace(model, document)
    assert made.k.dtype == made.v.dtype == dtype
    assert made.utility.dtype == torch.float32
    calls = []
    k, _ = prefill(model, document.context + document.branches[0].ids, watcher=calls.append)
    q = torch.stack([call.query[0, :, 150:] for call in calls])
    expected = utility(q.double(), k.double()) / 40
    torch.testing.assert_close(made.utility.double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(made.k, k[:, :, :150])


def test_split_points():
    document = text(1000, 300)
    options = TraceOptions()
    points = split_points(document, options)
    assert len(points) == 7
    assert sorted(set(points)) == list(points)
    assert points[0] >= 128
    assert points[-1] == 1000
    assert split_points(document, options) == points
    assert split_points(document, dataclasses.replace(options, seed=1)) != points
    assert split_points(text(1000, 300, seed=1), options) != points
    assert split_points(text(100, 300), options) == (100,)
    assert split_points(QUESTIONS, options) == (30,)
    assert split_points(document, dataclasses.replace(options, splits=0)) == (1000,)
    # Log-uniform: half of the points lie below the geometric mean of 128 and 2048.
    many = split_points(text(2048, 10), TraceOptions(splits=4000))
    drawn = [point for point in range(128, 2048) if point in many]
    below = sum(1 / point for point in range(128, 512)) / sum(1 / p for p in range(128, 2048))
    assert below == pytest.approx(0.5, abs=0.01)
    assert sum(point < 512 for point in drawn) > 300
    seen = [p for i in range(300) for p in split_points(text(2048, 1, seed=i), options)[:-1]]
    assert sum(p < 512 for p in seen) / len(seen) == pytest.approx(0.5, abs=0.04)


def test_running_text_is_told_from_questions():
    assert is_running_text(text(20, 10))
    assert not is_running_text(QUESTIONS)
    one_question = dataclasses.replace(QUESTIONS, branches=QUESTIONS.branches[:1])
    assert not is_running_text(one_question)
    two = text(20, 10)
    assert not is_running_text(dataclasses.replace(two, branches=two.branches * 2))


def test_a_digest_is_of_all_content():
    digests = {
        document_digest(document)
        for document in (
            QUESTIONS,
            dataclasses.replace(QUESTIONS, kind="other"),
            dataclasses.replace(QUESTIONS, context=CONTEXT[:-1]),
            dataclasses.replace(QUESTIONS, branches=BRANCHES[:1]),
            dataclasses.replace(QUESTIONS, marked=((4, 7),)),
            dataclasses.replace(QUESTIONS, metric="string_match"),
            dataclasses.replace(QUESTIONS, branches=(BRANCHES[0], Branch((8, 4, 30), 1))),
        )
    }
    assert len(digests) == 7
    # Traces on disk are found by it.
    known = Document("a", (1, 2), (Branch((3,), 1, 0.5, ("b",)),), ((0, 1),), "rouge_l")
    assert document_digest(known) == "b170ddf506e00ff0d910775b"


def test_one_forward_per_running_text_and_one_prefill_per_context():
    model = make("llama")
    lengths = []
    hook = model.model.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(
            tuple((kwargs.get("hidden_states", *args[:1])).shape[:2])
        ),
        with_kwargs=True,
    )
    trace(model, text(150, 40))
    assert lengths == [(1, 190)]
    lengths.clear()
    trace(model, QUESTIONS)
    assert lengths == [(1, 30), (2, 5)]
    hook.remove()


def test_attention_is_never_a_square_matrix(monkeypatch):
    """The largest block of logits is the limit, not the length squared."""
    monkeypatch.setattr("python_ref.attention_call.BLOCK_ELEMENTS", 6 * 230 * 16)
    largest = []
    softmax = torch.Tensor.softmax

    def watched(x, dim, **kwargs):
        largest.append(x.numel())
        return softmax(x, dim=dim, **kwargs)

    monkeypatch.setattr(torch.Tensor, "softmax", watched)
    trace(make("llama"), text(190, 40), TraceOptions(horizon=25))
    assert largest
    assert max(largest) <= 6 * 230 * 16
    assert 10 * max(largest) < 6 * 230 * 230


def test_generated_answers_are_further_branches():
    model = make("llama")
    k, v = prefill(model, CONTEXT)
    said = generate(model, k, v, 30, [branch.question for branch in BRANCHES], 4)
    more = [
        Branch((*branch.question, *answer), 4, branch.weight)
        for branch, answer in zip(BRANCHES, said, strict=True)
    ]
    expected = expected_utility(model, Document("x", CONTEXT, (*BRANCHES, *more)))
    made = trace(model, QUESTIONS, TraceOptions(generate=4)).utility
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    assert (made - trace(model, QUESTIONS).utility).abs().max() > 1e-3


def test_generated_continuations_count_at_the_end_of_the_context():
    model = make("mistral-sliding")
    document = text(150, 20)
    ids = list(document.context)
    for _ in range(6):
        ids.append(int(eager(model, ids)[0][-1].argmax()))
    own = Document("x", document.context, (document.branches[0], Branch(tuple(ids[150:]), 6)))
    made = trace(model, document, TraceOptions(generate=6, horizon=20))
    torch.testing.assert_close(made.utility, expected_utility(model, own), atol=1e-5, rtol=0)
    plain = trace(model, document, TraceOptions(horizon=20))
    assert all(map(torch.equal, made.utilities[:-1], plain.utilities[:-1]))


def test_generation_ends_at_the_end_token():
    model = make("llama")
    k, v = prefill(model, CONTEXT)
    said = generate(model, k, v, 30, [branch.question for branch in BRANCHES], 6)
    model.generation_config.eos_token_id = [said[0][1]]
    cut = [
        answer[: answer.index(said[0][1]) + 1] if said[0][1] in answer else answer
        for answer in said
    ]
    more = [
        Branch((*branch.question, *answer), len(answer), branch.weight)
        for branch, answer in zip(BRANCHES, cut, strict=True)
    ]
    expected = expected_utility(model, Document("x", CONTEXT, (*BRANCHES, *more)))
    made = trace(model, QUESTIONS, TraceOptions(generate=6)).utility
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "gemma2", "gpt-oss"])
def test_stored_queries_give_the_utility_of_any_split(family):
    model = make(family)
    document = text(190, 40)
    made = trace(model, document, TraceOptions(store="queries", splits=1, horizon=25))
    attention = group_attention(model, document.context + document.branches[0].ids)
    for split, horizon in ((130, 25), (171, 59), (190, 40)):
        expected = attention[:, :, split : split + horizon, :split].mean(dim=2)
        measured = made.utility_at(split, horizon)
        torch.testing.assert_close(measured, expected, atol=2e-4, rtol=0.03)
    for split in (127, 191):
        with pytest.raises(ValueError, match=f"split: got {split}, expected 128 to 190"):
            made.utility_at(split, 25)
    assert trace(model, QUESTIONS, TraceOptions(store="queries")).queries is None
    with pytest.raises(ValueError, match="has no queries"):
        trace(model, document).utility_at(150, 25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": ()}, "the context is empty"),
        ({"branches": ()}, "at least one branch"),
        ({"branches": (Branch((), 0),)}, "at least one branch, and tokens in each"),
        ({"branches": (Branch((1, 2), 1, weight=-1.0),)}, r"branch weights are \[-1.0\]"),
        ({"branches": (Branch((1, 2), 1, weight=math.nan),)}, r"branch weights are \[nan\]"),
        ({"context": (1, 61)}, "has token 61, but the model knows 61"),
    ],
)
def test_documents_that_cannot_be_traced(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        trace(make("llama"), dataclasses.replace(QUESTIONS, **changes))
    assert "'test'" in str(error.value)


def test_values_that_do_not_fit_are_refused():
    model = make("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.mul_(1e6)
    with pytest.raises(ValueError, match=r"values of layer 1 are not finite in torch.float16"):
        trace(model, QUESTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": -1}, "splits: got -1"),
        ({"horizon": 0}, "horizon: got 0"),
        ({"generate": -2}, "generate: got -2"),
        ({"temperature": math.nan}, "temperature: got nan"),
        ({"store": "all"}, "store: got 'all'"),
        ({"answer_share": 1.5}, "answer_share: got 1.5, expected 0 to 1"),
        ({"answer_share": math.nan}, "answer_share: got nan"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        TraceOptions(**options)
