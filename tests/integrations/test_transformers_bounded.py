"""`KVPCache` where rows get unequal lengths, and where decoding evicts: any family of models."""

import pytest
import torch
from families import FAMILIES, LAYERS, VOCAB, make
from helpers import assert_same
from integrations.tiny_models import ATTENTION, CACHE, forward

from kvp_ext import Policy
from kvp_ext.integrations import hf_eviction, hf_scorers
from kvp_ext.integrations.transformers import KVPCache, method_scorer
from python_ref.allocators import allocators, learned_shares
from python_ref.decoder import prefill
from python_ref.gates.gate import RetentionGate, score
from python_ref.gates.hidden import hidden_states
from python_ref.methods import methods
from python_ref.rope import output_grams, rope_of
from python_ref.selection import select

pytestmark = pytest.mark.usefixtures("one_thread")

ALLOCATORS = list(allocators())
# At least one layer of these attends to everything, so there is something to evict.
EVICTED = [name for name in FAMILIES if name not in ("mistral-sliding", "phi3-sliding")]


def ids_of(length, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (1, length), generator=g)


def by_hash(k, v, pos, queries):
    """Scores that spread what is kept and differ between heads."""
    heads = torch.arange(k.shape[1])[None, :, None]
    return ((pos * 2654435761 + heads * 40503) % 1009).float() * (1 + heads)


def policy_for(model, seed=0):
    config = model.config
    return Policy.random(
        layers=LAYERS, kv_heads=config.num_key_value_heads, head_dim=config.head_dim, seed=seed
    )


def inputs_of(model):
    """What methods read of a model's weights, by layer."""
    rope, grams = rope_of(model), output_grams(model)
    return {"rope": lambda layer: rope, "gram": lambda layer: grams[layer]}


def run(model, ids, cache, sizes):
    """Logits of forwards of so many tokens each, and what every eviction kept.

    Evictions are pairs of the tokens seen before and positions `[L, H, n]`, filled with -1.
    """
    logits, evictions, start = [], [], 0
    for q in sizes:
        before = cache.evictions
        logits.append(forward(model, ids[:, start : start + q], cache))
        if cache.evictions > before:
            pos = cache.positions[:, 0]
            evictions.append((start, pos.masked_fill(pos >= start, -1)))
        start += q
    assert start == ids.shape[1]
    return torch.cat(logits, 1), evictions


@torch.no_grad()
def masked_logits(model, ids, evictions):
    """Logits of one forward without a cache, each head denied the keys that were evicted."""
    length, config = ids.shape[1], model.config
    groups = config.num_attention_heads // config.num_key_value_heads
    denied = torch.zeros(LAYERS, config.num_key_value_heads, length, length, dtype=torch.bool)
    for seen, kept in evictions:
        alive = torch.zeros(*kept.shape[:2], length + 1, dtype=torch.bool)
        alive.scatter_(2, kept.long().masked_fill(kept < 0, length), True)
        evicted = (kept >= 0).any(-1).any(-1)[:, None, None] & ~alive[..., :seen]
        denied[:, :, seen:, :seen] |= evicted[:, :, None]
    causal = torch.full((length, length), -torch.inf).triu(1)

    def deny(attention, args, kwargs):
        mask = kwargs.get("attention_mask")
        mask = causal[None, None] if mask is None else mask[..., :length].float()
        hidden = denied[attention.layer_idx].repeat_interleave(groups, 0)
        return args, {**kwargs, "attention_mask": mask.masked_fill(hidden[None], -1e30)}

    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    hooks = [
        layer.self_attn.register_forward_pre_hook(deny, with_kwargs=True)
        for layer in model.model.layers
    ]
    try:
        return model(ids, use_cache=False).logits
    finally:
        model.config._attn_implementation = before
        for hook in hooks:
            hook.remove()


def assert_as_masked(model, ids, logits, evictions):
    assert evictions
    expected = masked_logits(model, ids, evictions)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    # The check has teeth: with nothing hidden, or something else, logits are far away.
    first = evictions[0][0]
    assert (masked_logits(model, ids, [])[:, first:] - expected[:, first:]).abs().max() > 1e-3


# ---- every family ------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("family", EVICTED)
def test_logits_are_those_of_the_full_cache_with_evicted_keys_hidden(family, allocator):
    """A prompt, decoding with evictions every 4 tokens, a second turn, and decoding again."""
    model = make(family)
    ids = ids_of(110)
    cache = KVPCache(
        model.config, 16, scorer=by_hash, allocator=allocator, sinks=2, recent=3, interval=4
    )
    with cache.attach(model):
        logits, evictions = run(model, ids, cache, [50, *[1] * 20, 20, *[1] * 20])
    assert [seen for seen, _ in evictions] == [50, 54, 58, 62, 66, 70, 90, 94, 98, 102, 106]
    assert_as_masked(model, ids, logits, evictions)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_padded_batches_compute_what_their_sequences_compute_alone(family, allocator, attention):
    """GQA groups 3, 7 and 1; a second turn; decode-time evictions; unequal rows."""
    model = make(family)
    model.set_attn_implementation(attention)
    policy = policy_for(model)
    turns = [[ids_of(n, seed=n)[0] for n in lengths] for lengths in ((30, 19, 24), (7, 12, 9))]

    def fresh():
        return KVPCache(
            model.config, 12, policy=policy, allocator=allocator, sinks=1, recent=2, interval=3
        )

    together, alone = fresh(), [fresh() for _ in range(3)]
    expected = [[] for _ in range(3)]
    for row, cache in enumerate(alone):
        with cache.attach(model):
            for turn in turns:
                expected[row].append(forward(model, turn[row][None], cache)[0])
                for t in range(8):
                    expected[row].append(forward(model, torch.tensor([[7 + t]]), cache)[0])
    got = [[] for _ in range(3)]
    mask = torch.zeros(3, 0, dtype=torch.long)

    def step(ids, new_mask):
        nonlocal mask
        mask = torch.cat([mask, new_mask], dim=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        logits = forward(model, ids, together, attention_mask=mask, position_ids=positions)
        for row in range(3):
            got[row].append(logits[row, new_mask[row] == 1])

    with together.attach(model):
        for turn in turns:
            width = max(map(len, turn))
            ids = torch.stack([torch.nn.functional.pad(s, (width - len(s), 0)) for s in turn])
            step(ids, (ids > 0).long())
            for t in range(8):
                step(torch.full((3, 1), 7 + t), torch.ones(3, 1, dtype=torch.long))
    for row, cache in enumerate(alone):
        torch.testing.assert_close(torch.cat(got[row]), torch.cat(expected[row]), atol=1e-4, rtol=0)
        for layer in range(LAYERS):
            for head in range(model.config.num_key_value_heads):
                held = together.positions[layer, row, head]
                mine = cache.positions[layer, 0, head]
                assert_same(held[held >= 0], mine[mine >= 0])


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_memory_falls_to_the_longest_row_of_each_layer(allocator):
    model = make("llama")
    cache = KVPCache(
        model.config, 40, scorer=by_hash, allocator=allocator, sinks=1, recent=2, headroom=8
    )
    with cache.attach(model):
        forward(model, ids_of(400), cache)
        full = cache.memory_bytes()
        cache.evict()
    heads, dim = model.config.num_key_value_heads, model.config.head_dim
    longest = cache.lengths.amax((1, 2))
    held = int((longest + 8).sum()) * heads * (2 * dim * 4 + 4)
    assert cache.memory_bytes() == held
    assert cache.lengths.sum() == 40 * LAYERS * heads
    if allocator in ("uniform", "pyramid"):  # whose rows are equal within a layer
        assert held == (40 + 8) * LAYERS * heads * (2 * dim * 4 + 4)
    assert held < full


def test_shares_that_come_with_a_policy():
    model = make("llama")
    plain = policy_for(model)
    table = {"0.25": [[0.5, 1.0], [1.5, 0.5], [1.0, 1.5]]}
    policy = Policy(plain.folded, provenance={"shares": table})
    cache = KVPCache(
        model.config, 20, policy=policy, allocator="share", sinks=1, recent=2, interval=4
    )
    ids = ids_of(100)
    with cache.attach(model):
        logits, evictions = run(model, ids, cache, [80, *[1] * 20])
    assert_as_masked(model, ids, logits, evictions)
    kept = (evictions[0][1] >= 0).sum(-1)
    assert kept.tolist() == [[10, 20], [30, 10], [20, 30]]
    with pytest.raises(ValueError, match="'share', which needs a policy that carries shares"):
        KVPCache(model.config, 20, policy=plain, allocator="share")
    same = KVPCache(model.config, 20, policy=plain, allocator=learned_shares(table), recent=2)
    with same.attach(model):
        forward(model, ids[:, :80], same)
        same.evict()
    assert same.kept_counts[:, 0].tolist() == kept.tolist()


def test_generate_with_unequal_rows():
    model = make("llama")
    cache = KVPCache(model.config, 16, policy=policy_for(model), allocator="pyramid", interval=4)
    ids = ids_of(60)
    with cache.attach(model):
        out = model.generate(ids, max_new_tokens=20, do_sample=False, **{CACHE: cache})
    twin = KVPCache(model.config, 16, policy=policy_for(model), allocator="pyramid", interval=4)
    with twin.attach(model):
        logits, evictions = run(model, out[:, :-1], twin, [60, *[1] * 19])
    assert_same(logits[:, 59:].argmax(-1), out[:, 60:])
    assert_as_masked(model, out[:, :-1], logits, evictions)


# ---- a bounded cache ---------------------------------------------------------------------------


def test_decoding_holds_a_constant_cache_and_allocates_nothing():
    model = make("llama")
    cache = KVPCache(model.config, 24, policy=policy_for(model), interval=8)
    forward(model, ids_of(60), cache)
    forward(model, ids_of(1), cache)
    held = cache.memory_bytes()
    buffers = [layer.key_buffer.data_ptr() for layer in cache.layers]
    longest = 0
    for t in range(400):
        forward(model, ids_of(1, seed=t), cache)
        longest = max(longest, int(cache.lengths.max()))
        assert cache.memory_bytes() == held
    assert buffers == [layer.key_buffer.data_ptr() for layer in cache.layers]
    assert longest == 24 + 8
    assert cache.evictions == 1 + 400 // 8
    assert cache.get_seq_length() == 461


@pytest.mark.parametrize("allocator", ["uniform", "pyramid"])
def test_only_new_entries_are_scored(allocator, monkeypatch):
    """And an eviction by kept scores keeps what one that scores everything again would keep."""
    model = make("llama")
    policy = policy_for(model)
    kept, again = (
        KVPCache(model.config, 20, policy=policy, interval=4, allocator=allocator) for _ in range(2)
    )
    scored = []
    by_policy, fused = hf_scorers.score, hf_eviction.evict_

    def score(k, v, pos, **options):
        scored.append(pos[0].shape[-1])
        return by_policy(k, v, pos, **options)

    def evict_(*args, policy, scores, **options):
        if policy is not None:
            scored.append(int(scores[0].isnan().sum((0, 1, 2))) // scores[0].shape[1])
        return fused(*args, policy=policy, scores=scores, **options)

    monkeypatch.setattr(hf_scorers, "score", score)
    monkeypatch.setattr(hf_eviction, "evict_", evict_)
    with kept.attach(model), again.attach(model):
        for t, q in enumerate([50, *[1] * 30]):
            ids = ids_of(q, seed=t)
            for layer in again.layers:  # forget every score
                layer.scored = 0
                if layer.score_buffer is not None:
                    layer.score_buffer.fill_(torch.nan)
            expected = forward(model, ids, again)
            scored.clear()
            assert_same(forward(model, ids, kept), expected)
            assert scored in ([], [50], [4])
    assert kept.evictions == again.evictions > 5
    assert_same(kept.positions, again.positions)


@pytest.mark.parametrize("allocator", ["uniform", "pyramid"])
def test_a_long_prompt_goes_through_a_small_cache_in_chunks(allocator):
    """32k tokens through 2k entries and a chunk: memory never exceeds them."""
    config = make("llama").config
    config.max_position_embeddings = 1 << 16
    budget, chunk, heads = 2048, 1024, config.num_key_value_heads
    cache = KVPCache(config, budget, scorer=by_hash, allocator=allocator)
    slots = []
    for start in range(0, 1 << 15, chunk):
        k = torch.full((1, heads, chunk, 8), float(start))
        cache._entries.incoming = torch.ones(1, chunk, dtype=torch.bool)
        for layer in range(LAYERS):
            cache.update(k, k, layer)
        slots.append(sum(layer.key_buffer.shape[2] for layer in cache.layers) / LAYERS)
    assert max(slots) <= 1.5 * (budget + cache._extent.headroom) + chunk
    cache.evict()
    assert cache.get_seq_length() == 1 << 15
    assert int(cache.lengths.sum()) == budget * LAYERS * heads


def test_prefill_in_chunks_by_generate():
    model = make("llama")
    ids = ids_of(200)
    cache = KVPCache(model.config, 32, scorer=by_hash, recent=4)
    sizes = []  # transformers 4 runs the last token of the prompt on its own
    hook = model.model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    out = model.generate(
        ids, max_new_tokens=4, do_sample=False, prefill_chunk_size=40, **{CACHE: cache}
    )
    hook.remove()
    assert sizes in ([40] * 5 + [1] * 3, [40] * 4 + [39] + [1] * 4)
    twin = KVPCache(model.config, 32, scorer=by_hash, recent=4)
    logits, evictions = run(model, out[:, :-1], twin, sizes)
    assert [seen for seen, _ in evictions] == [40, 80, 120, 160, sum(sizes[:5])]
    assert_same(logits[:, 199:].argmax(-1), out[:, 200:])
    assert_as_masked(model, out[:, :-1], logits, evictions)
    assert_same(cache.positions, twin.positions)


# ---- what needs attach -------------------------------------------------------------------------


def test_unequal_rows_need_attach():
    model = make("llama")
    cache = KVPCache(model.config, 16, policy=policy_for(model), allocator="pyramid")
    with pytest.raises(RuntimeError, match=r"'pyramid' leaves rows .*cache\.attach\(model\)"):
        forward(model, ids_of(30), cache)
    with cache.attach(model):
        forward(model, ids_of(30), cache)
        cache.evict()
    with pytest.raises(RuntimeError, match=r"run inside `with cache\.attach\(model\):`"):
        forward(model, ids_of(1), cache)
    assert cache.get_seq_length() == 30


def test_union_takes_only_budgets_that_heads_share():
    model = make("llama")
    cache = KVPCache(model.config, 16, policy=policy_for(model), allocator="pyramid", mode="union")
    with cache.attach(model):
        logits, evictions = run(model, ids_of(50), cache, [40, 10])
    assert_as_masked(model, ids_of(50), logits, evictions)
    assert_same(cache.positions[:, :, 0], cache.positions[:, :, 1])
    shares = [1 + head / 2 for head in range(model.config.num_key_value_heads)]
    unequal = learned_shares({"0.5": [shares] * model.config.num_hidden_layers})
    cache = KVPCache(
        model.config, 16, scorer=by_hash, sinks=1, recent=2, allocator=unequal, mode="union"
    )
    with cache.attach(model):
        forward(model, ids_of(40), cache)
        before = cache.positions
        with pytest.raises(ValueError, match="mode is 'union' and the allocator 'share'"):
            cache.evict()
    assert_same(cache.positions, before)


def test_masks_leave_nothing_behind():
    model = make("llama")
    cache = KVPCache(model.config, 16, policy=policy_for(model), allocator="pyramid", interval=4)

    def hooks():
        return [h for m in model.modules() for h in (*m._forward_pre_hooks, *m._forward_hooks)]

    def fail():
        with cache.attach(model):
            forward(model, ids_of(40), cache)
            raise KeyError("anything")

    before, attention = hooks(), model.config._attn_implementation
    with pytest.raises(KeyError):
        fail()
    assert hooks() == before
    assert model.config._attn_implementation == attention


# ---- methods by name ---------------------------------------------------------------------------

DECODING = [name for name, method in methods().items() if method.decode]


@pytest.mark.parametrize("allocator", ["uniform", "adakv"])
@pytest.mark.parametrize("name", DECODING)
@pytest.mark.parametrize("family", ["llama", "phi3", "gemma2"])
def test_every_method_bounds_a_cache(family, name, allocator):
    """A prompt, decoding, a second turn: rows stay bounded, and attention is right."""
    model = make(family)
    ids = ids_of(120)
    cache = KVPCache(
        model.config, 24, scorer=name, allocator=allocator, sinks=2, recent=3, interval=4
    )
    with cache.attach(model):
        logits, evictions = run(model, ids, cache, [70, *[1] * 20, 20, *[1] * 10])
    assert len(evictions) == 1 + 5 + 1 + 2
    evicted = cache.lengths.sum((1, 2)) > 0  # sliding layers are not counted
    assert cache.lengths[evicted].float().mean() <= 24 + 4
    assert_as_masked(model, ids, logits, evictions)


@pytest.mark.parametrize("name", DECODING)
@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3", "gemma2"])
def test_the_cache_ranks_as_the_method_does(family, name):
    """With the queries that the model really asked with, of all families."""
    model = make(family)
    ids = ids_of(60)[0].tolist()
    calls = []
    k, v = prefill(model, ids, watcher=calls.append)
    method = methods()[name]
    given = {name: value for name, value in inputs_of(model).items() if name in method.reads}
    cache = KVPCache(model.config, 20, scorer=name, sinks=2, recent=3, when="manual")
    with cache.attach(model):
        forward(model, torch.tensor([ids]), cache)
    cache.evict()
    for layer, call in enumerate(calls):
        if cache.lengths[layer].sum() == 0:  # sliding
            continue
        queries = call.query * (call.scale * call.query.shape[-1] ** 0.5)
        options = {"seed": layer} if "seed" in method.options else {}
        scores = method(
            k=k[layer],
            v=v[layer],
            q=queries[0],
            **{n: x(layer) for n, x in given.items()},
            **options,
        )
        pos = torch.arange(60)
        kept = select(scores[None, None], 20, pos=pos, sinks=2, recent=3).kept[0, 0]
        assert_same(cache.positions[layer, 0], kept)


def test_methods_that_read_queries_need_attach():
    model = make("llama")
    cache = KVPCache(model.config, 16, scorer="snapkv")
    with pytest.raises(RuntimeError, match=r"'snapkv' reads more of the model.*cache\.attach"):
        forward(model, ids_of(30), cache)
    plain = KVPCache(model.config, 16, scorer="knorm")
    forward(model, ids_of(30), plain)
    with pytest.raises(ValueError, match=r"'h2o' reads the queries of the last 30 tokens.* of 0"):
        plain.fork(scorer="h2o").evict()
    with cache.attach(model, query_window="all"):
        forward(model, ids_of(30), cache)
    assert cache.fork(scorer="h2o").evict()
    wrong = pytest.raises(ValueError, match="query_window is 'some', expected an int of at least 1")
    with wrong, cache.attach(model, query_window="some"):
        pass


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("snap", {}, "scorer is 'snap', expected one of .*snapkv"),
        ("oracle", {}, "scorer is 'oracle', expected a method that does not read the future"),
        ("snapkv", {"width": 3}, r"'snapkv' got options \['width'\], expected any of \['kernel'"),
    ],
)
def test_unknown_methods_and_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        method_scorer(name, **options)


def test_a_rotary_embedding_that_is_not_llamas_is_refused():
    model = make("gpt-oss")  # whose tables are half as wide
    cache = KVPCache(model.config, 16, scorer="tova")
    with cache.attach(model), pytest.raises(ValueError, match="queries of layer . cannot be had"):
        forward(model, ids_of(30), cache)


# ---- retention gates ---------------------------------------------------------------------------


def gate_for(model, seed=0):
    config = model.config
    gate = RetentionGate(
        LAYERS, config.num_key_value_heads, config.hidden_size, width=16, bias=2.0,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    with torch.no_grad():
        gate.last_weight.mul_(20)  # untrained ones hardly tell tokens apart
    return gate


@pytest.mark.parametrize("allocator", ["uniform", "model"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3", "gemma2"])
def test_a_gate_bounds_the_cache_by_what_is_left_of_every_token(family, allocator):
    """At every eviction those stay whose beta^age is largest, over the model or in each row."""
    model = make(family)
    gate, ids = gate_for(model), ids_of(110)
    cache = KVPCache(
        model.config, 16, scorer=gate, allocator=allocator, sinks=0, recent=0, interval=4
    )
    with cache.attach(model):
        logits, evictions = run(model, ids, cache, [50, *[1] * 20, 20, *[1] * 20])
    assert [seen for seen, _ in evictions] == [50, 54, 58, 62, 66, 70, 90, 94, 98, 102, 106]
    assert_as_masked(model, ids, logits, evictions)

    # The first eviction, from the hidden states of a plain forward.
    hidden = {}
    with hidden_states(model, hidden.__setitem__), torch.no_grad():
        model(ids[:, :50], use_cache=False)
    full = [i for i, layer in enumerate(cache.layers) if not layer.is_sliding]
    log_beta = gate.log_beta(torch.stack([hidden[i] for i in range(LAYERS)]))[full]
    scores = score(log_beta, torch.arange(50), 49)
    rules = {"pos": torch.arange(50), "sinks": 0, "recent": 0}
    if allocator == "model":
        heads = model.config.num_key_value_heads
        expected = select(scores, 16 * len(full) * heads, mode="model", **rules)
    else:
        expected = select(scores, 16, **rules)
    for layer, want in zip(full, expected.kept[:, 0], strict=True):
        for held, wanted in zip(evictions[0][1][layer], want, strict=True):
            assert_same(held[held >= 0], wanted[wanted >= 0])


def test_gates_of_other_models_and_late_ones_are_refused():
    model, other = make("llama"), gate_for(make("qwen2"))
    cache = KVPCache(model.config, 16, scorer=other)
    with pytest.raises(ValueError, match="gate for kv_heads 1, expected 2"), cache.attach(model):
        pass
    cache = KVPCache(model.config, 16, scorer=gate_for(model))
    with pytest.raises(RuntimeError, match=r"reads more of the model.*cache\.attach"):
        forward(model, ids_of(20), cache)
    plain = KVPCache(model.config, 16, scorer=by_hash)
    forward(model, ids_of(20), plain)
    with pytest.raises(ValueError, match="reads hidden states as they come"):
        plain.fork(scorer=gate_for(model))
    with cache.attach(model):
        forward(model, ids_of(20), cache)
    twin = cache.fork(budget=8)
    assert twin.evict()
    assert cache.lengths.max() == 20


# ---- whole-cache operations while evicting -------------------------------------------------------


def test_copies_go_on_evicting_as_their_original():
    model = make("llama")
    ids = ids_of(80)
    cache = KVPCache(
        model.config, 16, policy=policy_for(model), interval=3, allocator="model", recent=2
    )
    with cache.attach(model):
        run(model, ids[:, :60], cache, [50, *[1] * 10])
        twin = cache.fork()
        later = [forward(model, ids[:, t : t + 1], cache) for t in range(60, 80)]
    with twin.attach(model):
        for t, logits in zip(range(60, 80), later, strict=True):
            assert_same(forward(model, ids[:, t : t + 1], twin), logits)
    assert twin.evictions == cache.evictions == 10
    assert_same(twin.positions, cache.positions)


def test_tokens_that_were_taken_back_leave_no_score():
    model = make("llama")
    ids = ids_of(80)
    cache, plain = (KVPCache(model.config, 16, policy=policy_for(model), interval=6) for _ in "ab")
    run(model, ids_of(55, seed=1), cache, [50, *[1] * 5])
    cache.reset()
    run(model, torch.cat([ids[:, :52], ids_of(3, seed=2)], 1), cache, [50, *[1] * 5])
    cache.crop(-3)
    run(model, ids[:, :52], plain, [50, 1, 1])
    for t in range(52, 75):
        step = ids[:, t : t + 1]
        torch.testing.assert_close(
            forward(model, step, cache), forward(model, step, plain), atol=1e-5, rtol=1e-5
        )
    assert_same(cache.positions, plain.positions)
    assert cache.evictions == plain.evictions == 5


def test_a_row_of_padding_alone():
    model = make("llama")
    ids = torch.cat([ids_of(20), torch.zeros(1, 20, dtype=torch.long)])
    mask = (ids > 0).long()
    cache = KVPCache(
        model.config, 8, policy=policy_for(model), allocator="adakv", sinks=1, recent=1, interval=2
    )
    with cache.attach(model):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        forward(model, ids, cache, attention_mask=mask, position_ids=positions)
        for _ in range(6):
            mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)
            positions = mask.sum(-1, keepdim=True) - 1
            step = torch.full((2, 1), 5)
            logits = forward(model, step, cache, attention_mask=mask, position_ids=positions)
            assert bool(logits.isfinite().all())
    assert cache.lengths[:, 1].eq(6).all()


@pytest.mark.parametrize("budget", [1, 0.5])
def test_small_and_growing_budgets(budget):
    model = make("llama")
    cache = KVPCache(model.config, budget, policy=policy_for(model), interval=2, sinks=0, recent=0)
    ids = ids_of(70)
    logits, evictions = run(model, ids, cache, [30, *[1] * 40])
    assert_as_masked(model, ids, logits, evictions)
    assert cache.lengths.max() <= (1 if budget == 1 else 35) + 2
