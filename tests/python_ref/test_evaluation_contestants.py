import dataclasses

import pytest
import torch
from helpers import assert_same
from integrations.tiny_models import CONFIGS, make_model, make_policy, random_ids

import kvp_ext
from python_ref.agents import SmallAgent
from python_ref.data.document import Branch, Document
from python_ref.evaluation.contestants import (
    by_agent,
    by_method,
    by_policy,
    common_needs,
    contestant,
    contestants,
)
from python_ref.evaluation.eviction import entries, evict, parse_budget
from python_ref.evaluation.prefilled import Needs, prefill_document
from python_ref.methods import methods
from python_ref.rope import output_grams, rope_of
from python_ref.selection import pinned_entries

N = 90
CONFIG = CONFIGS["llama"]


@pytest.fixture(scope="module")
def item():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ids = tuple(random_ids(1, N + 5)[0].tolist())
    document = Document("test", ids[:N], (Branch(ids[N:], 2),))
    yield prefill_document(make_model(CONFIG), document, Needs(window=N, received=True))
    torch.set_num_threads(threads)


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "mine.safetensors"
    make_policy(CONFIG, seed=3).save(path)
    return path


@pytest.mark.parametrize("name", methods())
def test_every_method_keeps_the_pins_and_fills_its_budget(item, name):
    scores = by_method(name).score(item)
    assert scores.shape == item.k.shape[:3]
    for budget, sinks, recent in ((30, 4, 16), (18, 4, 16), (30, 0, 0)):
        left = evict(item.k, item.v, scores, budget, sinks=sinks, recent=recent)
        assert left.kept.shape == (*item.k.shape[:2], budget)
        valid = torch.ones(1, N, dtype=torch.bool)
        pins = pinned_entries(valid, torch.tensor([budget]), sinks, recent)[0].nonzero()[:, 0]
        for kept in left.kept.flatten(0, 1):
            assert set(pins.tolist()) <= set(kept.tolist())
            assert len(set(kept.tolist())) == budget
        slot = left.kept[..., None]
        assert torch.equal(left.k, item.k.take_along_dim(slot, dim=2))
        assert torch.equal(left.v, item.v.take_along_dim(slot, dim=2))


def test_evicting_changes_a_copy(item):
    before = item.k.clone(), item.v.clone()
    scores = by_method("knorm").score(item)
    ranked = scores.clone()
    evict(item.k, item.v, scores, 10)
    assert torch.equal(item.k, before[0])
    assert torch.equal(item.v, before[1])
    assert torch.equal(scores, ranked)


@pytest.mark.parametrize("name", ["knorm", "keydiff", "lagkv", "streaming_llm"])
def test_methods_without_queries_are_those_of_the_registry(item, name):
    expected = methods()[name](k=item.k, v=item.v)
    assert torch.equal(by_method(name).score(item), expected)


def test_tova_and_h2o_are_those_of_the_registry(item):
    tova = by_method("tova")
    assert tova.needs == Needs(window=1)
    assert torch.equal(tova.score(item), methods()["tova"](k=item.k, q=item.q))
    h2o = by_method("h2o")
    assert h2o.needs == Needs(received=True)
    # item.q holds the queries of all tokens here, which the registry's method reads.
    torch.testing.assert_close(
        h2o.score(item), methods()["h2o"](k=item.k, q=item.q), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize(("pool", "kernel"), [("none", 1), ("5", 5), ("21", 21)])
def test_snapkv_is_that_of_the_registry_without_its_pinned_window(item, pool, kernel):
    mine = contestant(f"snapkv:pool={pool},window=32")
    assert mine.needs == Needs(window=32)
    expected = methods()["snapkv"](
        k=item.k, q=item.q[:, :, -32:], window=32, kernel=kernel, pooling="avg"
    )
    # Pooling reaches from the window into the half kernel before it; the registry leaves it out.
    same = N - 32 - kernel // 2
    scores = mine.score(item)
    torch.testing.assert_close(scores[..., :same], expected[..., :same])
    assert scores[..., :-32].amax() > scores[..., -32:].amin()


def test_random_differs_between_documents_and_seeds(item):
    scores = by_method("random").score(item)
    assert torch.equal(scores, contestant("random:seed=0").score(item))
    assert not torch.equal(scores, contestant("random:seed=1").score(item))
    other = Document("other", item.document.context, item.document.branches)
    moved = dataclasses.replace(item, document=other)
    assert not torch.equal(scores, by_method("random").score(moved))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("capkv", {}),
        ("capkv:form=plain,horizon=32", {"form": "plain", "horizon": 32}),
        (
            "expected_attention:covariance=false,epsilon=0.01",
            {"covariance": False, "epsilon": 0.01},
        ),
        ("laprox:window=8,grouping=rms", {"window": 8, "grouping": "rms", "pinned": False}),
    ],
)
def test_methods_that_read_the_models_weights(item, text, options):
    mine = contestant(text)
    method = methods()[text.partition(":")[0]]
    assert mine.needs == Needs(window=method.window(options))
    weights = {"rope": rope_of(item.model), "gram": output_grams(item.model)}
    given = {name: x for name, x in weights.items() if name in method.reads}
    expected = method(k=item.k, v=item.v, q=item.q, **given, **options)
    scores = mine.score(item)
    assert_same(scores, expected)
    assert not scores.isnan().any()


def test_the_oracle_is_the_utility(item):
    assert torch.equal(contestant("oracle").score(item), item.utility)
    assert item.utility.sum() > 0


def test_a_policy_file_scores_as_kvp_ext_does(item, policy_file):
    mine = contestant(f"kvp:{policy_file}")
    assert mine.name == f"kvp:{policy_file}"
    policy = kvp_ext.load_policy(policy_file)
    expected = kvp_ext.score(item.k[:, None], item.v[:, None], torch.arange(N), policy=policy)
    assert torch.equal(mine.score(item), expected[:, 0])
    assert contestant("kvp", default_policy=str(policy_file)).fingerprint == mine.fingerprint


def test_a_fingerprint_tells_weights_apart(policy_file):
    before = contestant(f"kvp:{policy_file}").fingerprint
    assert len(before) == 16
    make_policy(CONFIG, seed=4).save(policy_file)
    assert contestant(f"kvp:{policy_file}").fingerprint != before


def test_an_agent_scores_as_the_policy_made_of_it(item):
    agent = SmallAgent(
        layers=CONFIG.num_hidden_layers,
        kv_heads=CONFIG.num_key_value_heads,
        head_dim_k=CONFIG.head_dim,
        head_dim_v=CONFIG.head_dim,
        position_rows=128,
        generator=torch.Generator().manual_seed(0),
    )
    policy = kvp_ext.Policy.from_agent(agent)
    torch.testing.assert_close(
        by_agent(agent).score(item), by_policy(policy).score(item), atol=1e-4, rtol=1e-4
    )


def test_all_means_the_policy_and_every_method():
    found = contestants(["full", "all", "knorm", "snapkv:pool=7"])
    assert [c.name for c in found] == ["kvp", "gate", *methods(), "snapkv:pool=7"]
    assert contestants(["full"]) == []
    assert found[0].fingerprint
    assert common_needs(found) == Needs(window=None, received=True, hidden=True)
    assert common_needs(contestants(["snapkv", "tova", "h2o"])) == Needs(64, received=True)
    assert common_needs(contestants(["keydiff"])) == Needs()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("snapvk", r"method: got 'snapvk', expected one of kvp, kvp:FILE, gate, gate:FILE, capkv"),
        ("snapkv:pol=3", r"'snapkv:pol=3' has option 'pol', expected one of: window, pool"),
        ("knorm:pool=3", r"has option 'pool', expected one of: none"),
        ("capkv:tau=much", r"has tau='much', expected a number"),
        ("capkv:greedy=1", r"has greedy='1', expected true or false"),
        ("laprox:window=-1", r"has window='-1', expected a whole number"),
        ("laprox:pinned=true", r"has option 'pinned', expected one of: window, kernel"),
        ("snapkv:pool=four", r"has pool='four', expected a whole number"),
        ("snapkv:pool", r"has pool='', expected a whole number"),
        ("snapkv:pool=4", r"pool: got 4, expected 'none' or an odd number"),
        ("snapkv:window=0", r"window: got 0, expected at least 1"),
        ("random:seed=-1", r"has seed='-1', expected a whole number"),
        ("kvp:nobody", r"policy 'nobody' is not shipped"),
    ],
)
def test_a_wrong_name_or_option_is_told(text, message):
    with pytest.raises(ValueError, match=message):
        contestant(text)


def test_a_missing_policy_file_is_told():
    with pytest.raises(FileNotFoundError, match=r"missing.safetensors"):
        contestant("kvp:missing.safetensors")


@pytest.mark.parametrize(
    ("text", "budget", "kept"),
    [
        ("0.25", 0.25, 50),
        ("25%", 0.25, 50),
        ("6.25%", 0.0625, 13),
        ("1.0", 1.0, 200),
        ("1", 1, 1),
        ("64", 64, 64),
        ("512", 512, 200),
    ],
)
def test_budgets(text, budget, kept):
    parsed = parse_budget(text)
    assert (parsed, type(parsed)) == (budget, type(budget))
    assert entries(parsed, 200) == kept


@pytest.mark.parametrize("text", ["0", "0.0", "-3", "1.5", "150%", "", "many", "nan", "inf", "%"])
def test_wrong_budgets(text):
    with pytest.raises(ValueError, match=r"budget: got .*, expected a fraction"):
        parse_budget(text)


def test_agents_are_told_apart_by_their_weights():
    def named(name, seed):
        generator = torch.Generator().manual_seed(seed)
        return by_agent(SmallAgent(1, 1, 4, generator=generator), name)

    assert named("a", 0).fingerprint == named("b", 0).fingerprint != named("a", 1).fingerprint
