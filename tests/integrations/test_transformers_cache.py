"""`KVPCache` on unpadded input: the model computes what it would with evicted keys hidden."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from helpers import BACKENDS, assert_same
from integrations.tiny_models import (
    ATTENTION,
    CACHE,
    CONFIGS,
    HEAD_DIM,
    LAYERS,
    _config,
    forward,
    generate,
    make_model,
    make_policy,
    random_ids,
    reference_attention,
    reference_logits,
    visibility,
)
from transformers import DynamicCache, Gemma2Config, LlamaConfig, MistralConfig

import kvp_ext
from kvp_ext.integrations.transformers import KVPCache

LLAMA = CONFIGS["llama"]
pytestmark = pytest.mark.usefixtures("one_thread")


def by_position_hash(k, v, pos, queries):
    """A scorer that spreads its choice and differs between heads."""
    heads = torch.arange(k.shape[1])[None, :, None]
    return ((pos * 2654435761 + heads * 40503) % 1009).float()


def by_key_norm(k, v, pos, queries):
    return -k.norm(dim=-1)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return make_model(CONFIGS[request.param])


@pytest.fixture(scope="module")
def llama():
    return make_model(LLAMA)


# ---- what attention sees ---------------------------------------------------------------------


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["per_head", "union"])
def test_logits_are_those_of_the_full_cache_with_evicted_keys_hidden(
    model, attention, backend, mode
):
    config = model.config
    model.set_attn_implementation(attention)
    ids = random_ids(1, 60)
    cache = KVPCache(config, 20, policy=make_policy(config), recent=4, mode=mode, backend=backend)
    logits = [forward(model, ids[:, :50], cache)]
    logits += [forward(model, ids[:, t : t + 1], cache) for t in range(50, 60)]
    kept = cache.positions[:, 0, :, :20]
    assert cache.lengths.eq(30).all()

    expected = reference_logits(model, ids, [(50, kept)])
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=1e-4, rtol=0)
    # The check has teeth: hiding nothing, or other keys, is far away.
    for evictions in ([], [(50, (kept + 1) % 50)]):
        other = reference_logits(model, ids, evictions)
        assert (other[:, 50:] - expected[:, 50:]).abs().max() > 0.05


def test_every_turn_is_compressed_and_positions_go_on(model):
    """Public fault 21: 512 -> 128, 512 more -> 128."""
    ids = random_ids(1, 1030)
    cache = KVPCache(model.config, 128, policy=make_policy(model.config))
    logits = [forward(model, ids[:, :512], cache)]
    assert cache.get_seq_length() == 512
    logits += [forward(model, ids[:, 512:1024], cache)]
    first = cache.positions[:, 0, :, :128]
    assert cache.get_seq_length() == 1024
    assert cache.layers[0].keys.shape[2] == 128 + 512
    assert cache.positions[:, :, :, 128:].eq(torch.arange(512, 1024)).all()
    logits += [forward(model, ids[:, t : t + 1], cache) for t in range(1024, 1030)]
    second = cache.positions[:, 0, :, :128]
    assert cache.get_seq_length() == 1030
    assert cache.layers[0].keys.shape[2] == 128 + 6
    assert cache.evictions == 2

    expected = reference_logits(model, ids, [(512, first), (1024, second)])
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=1e-4, rtol=0)


def test_a_batch_without_padding_equals_its_sequences_alone(model):
    ids = random_ids(3, 40)
    policy = make_policy(model.config)
    together = KVPCache(model.config, 16, policy=policy, recent=4)
    sequences, logits = generate(model, ids, together, 6)
    for row in range(3):
        alone = KVPCache(model.config, 16, policy=policy, recent=4)
        expected, expected_logits = generate(model, ids[row : row + 1], alone, 6)
        assert_same(sequences[row], expected[0])
        assert_same(together.positions[:, row], alone.positions[:, 0])
        torch.testing.assert_close(logits[row], expected_logits[0], atol=1e-4, rtol=0)


def test_generate_goes_on_from_a_cache_that_was_evicted(llama):
    """A second `generate` gets the whole conversation and takes the new tokens from it."""
    cache = KVPCache(LLAMA, 24, policy=make_policy(LLAMA), recent=4)
    first, _ = generate(llama, random_ids(1, 50), cache, 5)
    kept_first = cache.positions[:, 0, :, :24]
    conversation = torch.cat([first, random_ids(1, 30, seed=1)], dim=1)
    sequences, logits = generate(llama, conversation, cache, 4)
    kept_second = cache.positions[:, 0, :, :24]
    assert cache.get_seq_length() == sequences.shape[1] - 1 == 50 + 5 + 30 + 3

    expected = reference_logits(llama, sequences, [(50, kept_first), (85, kept_second)])
    torch.testing.assert_close(logits[0], expected[0, 84:88], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["past_key_values", CACHE])
def test_both_names_of_the_cache_argument_work(llama, name):
    cache = KVPCache(LLAMA, 12, policy=make_policy(LLAMA), recent=4)
    llama.generate(random_ids(1, 30), max_new_tokens=2, do_sample=False, **{name: cache})
    assert cache.evictions == 1


# ---- a budget that evicts nothing ------------------------------------------------------------


@pytest.mark.parametrize("budget", [40, 1000, 1.0])
def test_a_budget_of_at_least_the_prompt_changes_nothing_at_all(model, budget):
    ids = random_ids(2, 40)
    cache = KVPCache(model.config, budget, policy=make_policy(model.config))
    plain = DynamicCache(config=model.config)
    sequences, logits = generate(model, ids, cache, 8)
    expected, expected_logits = generate(model, ids, plain, 8)
    assert_same(sequences, expected)
    assert_same(logits, expected_logits)
    for ours, theirs in zip(cache.layers, plain.layers, strict=True):
        assert_same(ours.keys.contiguous(), theirs.keys)
        assert_same(ours.values.contiguous(), theirs.values)
    assert cache.evictions == 0
    assert cache.kept_counts is None


@pytest.mark.parametrize("length", [1, 2, 4, 16, 20])
def test_short_prompts_are_left_alone(llama, length):
    """Public fault 4: up to the windows and the budget, eviction is an exact no-op."""
    ids = random_ids(1, length)
    cache = KVPCache(LLAMA, 20, policy=make_policy(LLAMA))
    assert cache.evict() is False
    _, logits = generate(llama, ids, cache, 3)
    _, expected = generate(llama, ids, DynamicCache(config=LLAMA), 3)
    assert_same(logits, expected)
    assert cache.evict() is (length + 2 > 20)


def test_beam_search_with_nothing_evicted_equals_that_of_a_plain_cache(llama):
    ids = random_ids(2, 20)
    beams = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False}
    cache = KVPCache(LLAMA, 100, policy=make_policy(LLAMA))
    expected = llama.generate(ids, **beams, **{CACHE: DynamicCache(config=LLAMA)})
    assert_same(llama.generate(ids, **beams, **{CACHE: cache}), expected)


def test_beams_of_an_evicted_cache_are_scored_as_their_sequences_alone(llama):
    ids = random_ids(1, 40)
    cache = KVPCache(LLAMA, 16, policy=make_policy(LLAMA), recent=4)
    out = llama.generate(
        ids,
        max_new_tokens=5,
        num_beams=3,
        num_return_sequences=3,
        do_sample=False,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
        **{CACHE: cache},
    )
    kept = cache.positions[:, 0, :, :16]
    for sequence, score in zip(out.sequences, out.sequences_scores, strict=True):
        logits = reference_logits(llama, sequence[None], [(40, kept)])
        steps = logits[0, 39:-1].log_softmax(-1).gather(1, sequence[40:, None])
        torch.testing.assert_close(steps.sum(), score, atol=1e-4, rtol=1e-5)


# ---- what is kept ----------------------------------------------------------------------------


def test_survivors_stay_bit_identical_over_a_hundred_rounds():
    """Public fault 2: no position drifts, no entry changes while it is moved."""
    g = torch.Generator().manual_seed(0)
    batch, heads, rounds, step = 2, LLAMA.num_key_value_heads, 100, 5
    shape = (LAYERS, 2, batch, heads, rounds * step, HEAD_DIM)
    everything = torch.randn(shape, generator=g)
    cache = KVPCache(LLAMA, 12, scorer=by_position_hash, sinks=2, recent=3)
    for start in range(0, rounds * step, step):
        assert cache.get_seq_length() == start
        assert cache.get_mask_sizes(step, 0)[1] + cache.layers[0].get_mask_sizes(0)[0] == start
        for layer in range(LAYERS):
            k, v = everything[layer, ..., start : start + step, :]
            cache.update(k, v, layer)
    cache.evict()
    assert cache.evictions == rounds - 2  # 5 and 10 tokens fit
    pos = cache.positions
    assert cache.lengths.eq(12).all()
    assert pos[..., :2].eq(torch.arange(2)).all()
    assert pos[..., -3:].eq(torch.arange(rounds * step - 3, rounds * step)).all()
    for layer in range(LAYERS):
        at = pos[layer].long()[..., None].expand(-1, -1, -1, HEAD_DIM)
        assert_same(cache.layers[layer].keys.contiguous(), everything[layer, 0].gather(2, at))
        assert_same(cache.layers[layer].values.contiguous(), everything[layer, 1].gather(2, at))


def test_a_preallocated_buffer_offers_no_empty_slots():
    """Public fault 20: 16 entries in a larger buffer, budget 8: eight real ones are kept."""
    cache = KVPCache(LLAMA, 8, scorer=by_key_norm, sinks=0, recent=0, when="manual")
    k = torch.randn(1, 2, 16, HEAD_DIM) + 3  # an empty slot would have the smallest norm of all
    for tokens in (k[:, :, :10], k[:, :, 10:]):
        for layer in range(LAYERS):
            cache.update(tokens, tokens, layer)
    assert cache.layers[0].key_buffer.shape[2] > 16
    cache.evict()
    expected = k.norm(dim=-1).topk(8, largest=False).indices.sort().values
    assert_same(cache.positions[0], expected.int())
    assert_same(cache.layers[0].keys.norm(dim=-1), k.norm(dim=-1).gather(2, expected))


def test_unused_slots_are_finite():
    """Public fault 8: a masked attention over whole buffers cannot meet a NaN."""
    cache = KVPCache(LLAMA, 8, scorer=by_key_norm, recent=2)
    for tokens in (30, 1, 200):
        for layer in range(LAYERS):
            k = torch.randn(1, 2, tokens, HEAD_DIM)
            cache.update(k, k, layer)
    assert all(layer.key_buffer.isfinite().all() for layer in cache.layers)
    assert all(layer.value_buffer.isfinite().all() for layer in cache.layers)


@pytest.mark.parametrize(
    ("ratio", "prompt", "kept"), [(0.25, 512, 128), (0.1, 1000, 100), (0.5, 5, 3), (0.001, 30, 1)]
)
def test_ratios_round_half_up_and_keep_at_least_one(ratio, prompt, kept):
    """Public fault 19."""
    cache = KVPCache(LLAMA, ratio, scorer=by_key_norm)
    k = torch.randn(1, 2, prompt, HEAD_DIM)
    for layer in range(LAYERS):
        cache.update(k, k, layer)
    assert cache.evict() is True
    assert cache.lengths.eq(kept).all()


def test_a_ratio_is_of_everything_seen():
    cache = KVPCache(LLAMA, 0.25, scorer=by_key_norm)
    for tokens, kept in ((512, 128), (512, 256)):
        k = torch.randn(1, 2, tokens, HEAD_DIM)
        for layer in range(LAYERS):
            cache.update(k, k, layer)
        cache.evict()
        assert cache.lengths.eq(kept).all()


def test_union_keeps_the_same_tokens_in_all_heads_of_a_layer():
    cache = KVPCache(LLAMA, 10, scorer=by_position_hash, mode="union", recent=2)
    k = torch.randn(1, 2, 50, HEAD_DIM)
    for layer in range(LAYERS):
        cache.update(k, k, layer)
    cache.evict()
    assert_same(cache.positions[:, :, 0], cache.positions[:, :, 1])


# ---- memory ----------------------------------------------------------------------------------


def test_memory_falls_to_the_budget_and_headroom(llama):
    cache = KVPCache(LLAMA, 64, policy=make_policy(LLAMA), headroom=32)
    full = DynamicCache(config=LLAMA)
    ids = random_ids(1, 512)
    forward(llama, ids, cache)
    forward(llama, ids, full)
    entry = 2 * LLAMA.num_key_value_heads * HEAD_DIM * 4 * LAYERS
    bytes_full = sum(t.nbytes for m in full.layers for t in (m.keys, m.values))
    assert bytes_full == 512 * entry
    assert cache.memory_bytes() == 512 * (entry + 4)
    cache.evict()
    assert cache.memory_bytes() == 96 * (entry + LAYERS * LLAMA.num_key_value_heads * 4)
    assert cache.memory_bytes() < bytes_full / 5


def test_kv_heads_are_not_expanded():
    """Public fault 9: 32 query and 8 KV heads store 8 heads."""
    config = _config(LlamaConfig, 32, 8)
    model = make_model(config)
    cache = KVPCache(config, 20, scorer=by_key_norm)
    generate(model, random_ids(1, 200), cache, 2)
    assert cache.layers[0].key_buffer.shape[1] == 8
    assert cache.memory_bytes() == (20 + 128) * LAYERS * 8 * (2 * HEAD_DIM * 4 + 4)


def test_decoding_within_the_headroom_allocates_nothing():
    """Public fault 11."""
    cache = KVPCache(LLAMA, 16, scorer=by_key_norm, headroom=8, recent=4)

    def append(tokens):
        k = torch.randn(1, 2, tokens, HEAD_DIM)
        cache.get_mask_sizes(tokens, 0)
        for layer in range(LAYERS):
            cache.update(k, k, layer)

    def addresses():
        return [t.data_ptr() for m in cache.layers for t in (m.key_buffer, m.rows.pos)]

    append(64)
    append(1)
    buffers = addresses()
    held = cache.memory_bytes()
    for _ in range(7):
        append(1)
    assert held == cache.memory_bytes()
    assert buffers == addresses()
    sizes = set()
    for _ in range(200):
        append(1)
        sizes.add(cache.layers[0].key_buffer.shape[2])
    assert len(sizes) <= 6  # growth is geometric


RESIDENT = """
import json
from pathlib import Path

import torch
from transformers import LlamaConfig

from kvp_ext.integrations.transformers import KVPCache


def mb(field):
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in status if x.startswith(field)).split()[1]) / 1024


config = LlamaConfig(num_hidden_layers=2, num_attention_heads=8, hidden_size=1024)
scorer = lambda k, v, pos, queries: -k.norm(dim=-1)
cache = KVPCache(config, 0.125, scorer=scorer)
k = torch.ones(1, 8, 16384, 128)
before = mb("VmRSS")
for layer in range(2):
    cache.update(k, k, layer)
full = mb("VmRSS") - before
cache.evict()
print(json.dumps({"full": full, "peak": mb("VmHWM") - before, "after": mb("VmRSS") - before}))
"""


def test_the_process_gives_the_memory_back():
    """Resident memory after the eviction, and its peak during it, in a process of its own."""
    # Buffers of 64 MB are mapped by the C library, and unmapped when they are freed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    mb = json.loads(done.stdout)
    full = 2 * 2 * 64
    assert mb["full"] == pytest.approx(full, rel=0.1)
    # One layer's new buffers, scores and positions come on top of the cache.
    assert mb["peak"] < 1.3 * full
    assert mb["after"] < 0.25 * full


# ---- state -----------------------------------------------------------------------------------


def test_caches_share_no_state(llama):
    """Public fault 12: fresh caches agree, whatever ran in between and in whatever order."""
    prompts = [random_ids(1, n, seed=n) for n in (30, 41, 55)]
    policy = make_policy(LLAMA)

    def run(order):
        caches = {i: KVPCache(LLAMA, 14, policy=policy, recent=4) for i in order}
        logits = {i: [forward(llama, prompts[i], caches[i])] for i in order}
        for _ in range(3):  # interleaved
            for i in order:
                token = logits[i][-1][:, -1:].argmax(-1)
                logits[i].append(forward(llama, token, caches[i]))
        return {i: (torch.cat(logits[i], 1), caches[i].positions) for i in order}

    expected = {i: run([i])[i] for i in range(3)}
    for order in ([0, 1, 2], [2, 0, 1], [0, 1, 2]):
        for i, (logits, positions) in run(order).items():
            assert_same(logits, expected[i][0])
            assert_same(positions, expected[i][1])


def test_fork_compares_methods_after_one_prefill(llama):
    ids, policy, other = random_ids(2, 50), make_policy(LLAMA), make_policy(LLAMA, seed=1)
    cache = KVPCache(LLAMA, 20, policy=policy, recent=4)
    token = forward(llama, ids, cache)[:, -1:].argmax(-1)
    kept = []
    for method in (
        {"budget": 20, "policy": policy},
        {"budget": 10, "policy": policy},
        {"budget": 20, "scorer": by_key_norm},
        {"budget": 20, "policy": other},
    ):
        twin, alone = cache.fork(**method), KVPCache(LLAMA, recent=4, **method)
        forward(llama, ids, alone)
        assert_same(forward(llama, token, twin), forward(llama, token, alone))
        assert_same(twin.positions, alone.positions)
        kept.append(tuple(twin.positions.flatten().tolist()))
    assert len(set(kept)) == 4
    assert (cache.get_seq_length(), cache.evictions) == (50, 0)
    assert cache.lengths.eq(50).all()
    twin = copy.deepcopy(cache)
    assert_same(forward(llama, token, cache), forward(llama, token, twin))


def test_fork_takes_only_the_arguments_of_the_constructor(llama):
    cache = KVPCache(LLAMA, 20, policy=make_policy(LLAMA))
    with pytest.raises(TypeError, match="fork got \\['window'\\], expected any of \\['allocator'"):
        cache.fork(window=3)
    with pytest.raises(ValueError, match="budget is -1"):
        cache.fork(budget=-1)


def test_manual_eviction_and_what_it_reports(llama):
    cache = KVPCache(LLAMA, 16, policy=make_policy(LLAMA), recent=4, when="manual")
    assert cache.positions.numel() == 0
    assert cache.memory_bytes() == 0
    generate(llama, random_ids(1, 40), cache, 5)
    assert (cache.evictions, cache.last_eviction_ms, cache.kept_counts) == (0, None, None)
    assert cache.lengths.eq(44).all()
    assert cache.evict() is True
    assert cache.lengths.eq(16).all()
    assert cache.kept_counts.eq(16).all()
    assert cache.last_eviction_ms > 0
    assert cache.evict() is False
    assert cache.evictions == 1
    cache.reset()
    assert (cache.get_seq_length(), cache.memory_bytes(), cache.evictions) == (0, 0, 0)
    generate(llama, random_ids(2, 10), cache, 1)


def test_rows_can_be_reordered_selected_and_repeated(llama):
    ids, policy = random_ids(3, 40), make_policy(LLAMA)
    cache = KVPCache(LLAMA, 16, policy=policy, recent=4)
    tokens = forward(llama, ids, cache)[:, -1:].argmax(-1)
    expected = forward(llama, tokens, cache.fork())
    for evict_first in (False, True):
        base = cache.fork()
        if evict_first:
            base.evict()
        reordered, selected, repeated = base.fork(), base.fork(), base.fork()
        rows = torch.tensor([2, 0, 2])
        reordered.reorder_cache(rows)
        selected.batch_select_indices(torch.tensor([1]))
        repeated.batch_repeat_interleave(2)
        for twin, index in (
            (reordered, rows),
            (selected, torch.tensor([1])),
            (repeated, torch.tensor([0, 0, 1, 1, 2, 2])),
        ):
            logits = forward(llama, tokens[index], twin)
            torch.testing.assert_close(logits, expected[index], atol=1e-4, rtol=0)
            assert twin.lengths.shape == (LAYERS, len(index), 2)


def test_crop_takes_back_only_what_no_eviction_has_judged(llama):
    ids = random_ids(1, 60)
    cache = KVPCache(LLAMA, 16, policy=make_policy(LLAMA), recent=4)
    forward(llama, ids[:, :45], cache)
    cache.crop(-5)  # before the eviction anything may go
    twin = KVPCache(LLAMA, 16, policy=make_policy(LLAMA), recent=4)
    forward(llama, ids[:, :40], twin)
    for t in range(50, 54):
        forward(llama, ids[:, t : t + 1], cache)
    cache.crop(-4)
    assert cache.get_seq_length() == 40
    assert_same(forward(llama, ids[:, 40:41], cache), forward(llama, ids[:, 40:41], twin))
    with pytest.raises(ValueError, match="crop of 2 tokens, expected at most 1"):
        cache.crop(-2)
    cache.crop(40)  # transformers 4: the count to keep
    assert cache.get_seq_length() == 40


def test_a_forward_that_fails_leaves_the_cache_as_before(llama):
    """Public fault 13."""
    ids = random_ids(1, 40)
    cache = KVPCache(LLAMA, 16, policy=make_policy(LLAMA), recent=4)
    forward(llama, ids, cache)
    before = cache.fork()

    def fail(*_):
        raise RuntimeError("out of memory")

    hook = llama.model.layers[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        forward(llama, ids[:, :1], cache)
    hook.remove()
    assert cache.get_seq_length() == 40
    assert_same(forward(llama, ids[:, :1], cache), forward(llama, ids[:, :1], before))


def test_a_policy_that_does_not_fit_leaves_the_cache_as_before(llama):
    ids = random_ids(1, 40)
    good = make_policy(LLAMA)
    # The configuration does not tell the values' head dim, so this one fails at the eviction.
    wrong = kvp_ext.Policy.random(
        layers=LAYERS, kv_heads=good.kv_heads, head_dim=HEAD_DIM, head_dim_v=HEAD_DIM + 4
    )
    cache = KVPCache(LLAMA, 16, policy=wrong)
    forward(llama, ids, cache)
    keys = [layer.keys.clone() for layer in cache.layers]
    for attempt in (lambda: forward(llama, ids[:, :1], cache), cache.evict):
        with pytest.raises(ValueError, match="policy"):
            attempt()
    assert (cache.get_seq_length(), cache.evictions) == (40, 0)
    for layer, before in zip(cache.layers, keys, strict=True):
        assert_same(layer.keys, before)
    twin = KVPCache(LLAMA, 16, policy=good)
    forward(llama, ids, twin)
    assert_same(
        forward(llama, ids[:, :1], cache.fork(policy=good)), forward(llama, ids[:, :1], twin)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 1}, "layers 1"),
        ({"kv_heads": 5}, "kv_heads 5"),
        ({"head_dim": 4}, "head_dim_k 4"),
    ],
)
def test_a_policy_of_another_model_is_refused_before_the_prompt(change, words):
    good = make_policy(LLAMA)
    geometry = {"layers": good.layers, "kv_heads": good.kv_heads, "head_dim": good.head_dim_k}
    with pytest.raises(ValueError, match=words):
        KVPCache(LLAMA, 16, policy=kvp_ext.Policy.random(**(geometry | change)))


def test_a_model_instead_of_its_configuration_is_refused(llama):
    with pytest.raises(TypeError, match="config is LlamaForCausalLM.*model.config"):
        KVPCache(llama, 16, policy=make_policy(LLAMA))


# ---- scorers and queries ---------------------------------------------------------------------


def test_a_scorer_gets_the_cache_and_the_last_queries(llama):
    ids, seen = random_ids(2, 40), []

    def scorer(k, v, pos, queries):
        seen.append((k, v, pos, queries))
        return torch.zeros(pos.shape)

    cache = KVPCache(LLAMA, 16, scorer=scorer, sinks=0, recent=0)
    with cache.attach(llama, query_window=6), reference_attention(llama) as attention:
        attention.visible = visibility(LLAMA, 40, [])
        forward(llama, ids, cache)
        asked = dict(attention.queries)
    keys = [layer.keys.clone() for layer in cache.layers]
    cache.evict()
    assert len(seen) == LAYERS
    for layer, (k, v, pos, queries) in enumerate(seen):
        assert k.shape == v.shape == (2, 2, 40, HEAD_DIM)
        assert pos.eq(torch.arange(40)).all()
        torch.testing.assert_close(queries, asked[layer][:, :, -6:], atol=1e-5, rtol=1e-5)
        assert keys[layer].shape == k.shape
    # Equal scores: the lowest slots stay.
    assert cache.positions.eq(torch.arange(16)).all()


def test_queries_are_those_of_the_last_entries(llama):
    """Of prompts and decoded tokens; of nothing where a forward was not seen."""
    windows = []

    def scorer(k, v, pos, queries):
        windows.append(queries)
        return torch.zeros(pos.shape)

    ids = random_ids(1, 42)
    cache = KVPCache(LLAMA, 16, scorer=scorer, when="manual")
    with cache.attach(llama, query_window=4), reference_attention(llama) as attention:
        attention.visible = visibility(LLAMA, 42, [])
        llama(ids, use_cache=False)
        asked = dict(attention.queries)
    with cache.attach(llama, query_window=4):
        forward(llama, ids[:, :40], cache)
        for t in (40, 41):
            forward(llama, ids[:, t : t + 1], cache)
    twin = cache.fork()
    cache.evict()
    for layer, queries in enumerate(windows):
        torch.testing.assert_close(queries, asked[layer][:, :, -4:], atol=1e-4, rtol=1e-4)
    windows.clear()
    forward(llama, ids[:, :1], twin)
    twin.evict()
    assert windows == [None] * LAYERS


def test_a_scorer_of_the_wrong_shape_is_named(llama):
    cache = KVPCache(LLAMA, 16, scorer=lambda k, v, pos, queries: k.norm())
    forward(llama, random_ids(1, 40), cache)
    with pytest.raises(
        ValueError, match=r"scorer returned \[\] for layer 0, expected .* \[1, 2, 40"
    ):
        cache.evict()


# ---- models with sliding windows -------------------------------------------------------------


def test_sliding_window_layers_are_untouched():
    config = Gemma2Config(
        vocab_size=89,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        sliding_window=8,
        query_pre_attn_scalar=16,
        initializer_range=0.25,
        eos_token_id=None,
    )
    model = make_model(config, attention="eager")
    ids = random_ids(1, 60)
    cache = KVPCache(config, 20, scorer=by_position_hash, recent=4)
    plain = DynamicCache(config=config)
    forward(model, ids[:, :50], cache)
    forward(model, ids[:, :50], plain)
    cache.evict()
    sliding = [i for i, m in enumerate(cache.layers) if m.is_sliding]
    assert len(sliding) == 2
    for i, (ours, theirs) in enumerate(zip(cache.layers, plain.layers, strict=True)):
        assert ours.keys.shape[2] == (theirs.keys.shape[2] if i in sliding else 20)
        if i in sliding:
            assert_same(ours.keys, theirs.keys)
            assert cache.lengths[i].eq(0).all()
    # Keeping everything that a full layer would see shows that the masks of both kinds fit.
    everything = cache.fork(budget=20)
    logits = [forward(model, ids[:, t : t + 1], everything) for t in range(50, 60)]
    assert torch.stack(logits).isfinite().all()
    uncut, reference = KVPCache(config, 50, scorer=by_key_norm), DynamicCache(config=config)
    for start, stop in ((0, 50), (50, 51), (51, 60)):
        got = forward(model, ids[:, start:stop], uncut)
        assert_same(got, forward(model, ids[:, start:stop], reference))


def test_an_interrupted_forward_with_sliding_layers_is_refused():
    config = _config(MistralConfig, 4, 2, sliding_window=8)
    config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    cache = KVPCache(config, 16, scorer=by_key_norm)
    k = torch.randn(1, 2, 20, HEAD_DIM)
    cache.update(k, k, 0)
    cache.update(k, k, 1)
    with pytest.raises(RuntimeError, match=r"layer 1 \(sliding window\) has seen 20 tokens"):
        cache.get_mask_sizes(20, 0)


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"budget": True}, TypeError, "budget is True"),
        ({"budget": -1}, ValueError, "budget is -1"),
        ({"budget": 0}, ValueError, "budget is 0, expected an int of at least 1"),
        ({"budget": 1.5}, ValueError, "budget is 1.5"),
        ({"budget": float("nan")}, ValueError, "budget is nan"),
        ({"budget": torch.tensor([3, 4])}, TypeError, "an allocator shares it"),
        ({"mode": "model"}, ValueError, "mode is 'model'.*allocator='model'"),
        ({"allocator": "fair"}, ValueError, "allocator is 'fair', expected one of .*uniform"),
        ({"interval": 0}, ValueError, "interval is 0"),
        ({"interval": 8, "when": "manual"}, ValueError, "interval is 8 and when is 'manual'"),
        ({"scorer": by_key_norm}, ValueError, "both policy and scorer"),
        ({"headroom": 0}, ValueError, "headroom is 0"),
        ({"when": "always"}, ValueError, "when is 'always'"),
        ({"policy": "no-such-policy"}, ValueError, "no-such-policy"),
        ({"sinks": -1}, ValueError, "sinks is -1"),
        ({"recent": 1.5}, TypeError, "recent is 1.5"),
        ({"backend": "nope"}, ValueError, "backend is 'nope', expected None or one of 'cpu'"),
        ({"allocator": "adakv", "mode": "union"}, ValueError, "'union'.*'adakv' heads compete"),
        ({"allocator": "model", "mode": "union"}, ValueError, "'union'.*'model' heads compete"),
    ],
)
def test_bad_options_are_named(change, error, message):
    options = {"budget": 10, "policy": make_policy(LLAMA), **change}
    with pytest.raises(error, match=message):
        KVPCache(LLAMA, **options)


def test_without_a_policy_the_remedy_is_named():
    with pytest.raises(RuntimeError, match=r"kvp_ext\.use"):
        KVPCache(LLAMA, 10)
    policy = make_policy(LLAMA)
    with kvp_ext.use(policy):
        cache = KVPCache(LLAMA, 10)
    assert cache._options["policy"] is policy


def test_models_that_cannot_be_served_are_refused():
    with pytest.raises(ValueError, match="all layers of this MistralConfig have a sliding window"):
        KVPCache(_config(MistralConfig, 4, 2, sliding_window=16), 10, scorer=by_key_norm)
    shared = _config(LlamaConfig, 4, 2)
    shared.num_kv_shared_layers = 1
    with pytest.raises(ValueError, match="num_kv_shared_layers is 1"):
        KVPCache(shared, 10, scorer=by_key_norm)


def test_gradients_are_refused(llama):
    cache = KVPCache(LLAMA, 10, scorer=by_key_norm)
    with pytest.raises(RuntimeError, match=r"torch.no_grad\(\)"):
        llama(random_ids(1, 20), **{CACHE: cache})
    assert cache.get_seq_length() == 0


@pytest.mark.skipif(CACHE == "past_key_values", reason="older transformers do not ask the cache")
def test_assisted_decoding_is_refused(llama):
    cache = KVPCache(LLAMA, 10, scorer=by_key_norm)
    with pytest.raises(ValueError, match="requires a cache that can be cropped"):
        llama.generate(
            random_ids(1, 20), max_new_tokens=4, prompt_lookup_num_tokens=2, **{CACHE: cache}
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_may_end_between_forwards(llama, backend):
    ids = random_ids(1, 42)
    cache = KVPCache(LLAMA, 16, policy=make_policy(LLAMA), headroom=1, backend=backend)
    with torch.inference_mode():
        forward(llama, ids[:, :40], cache)
        twin = cache.fork()
    for start in (40, 41):
        logits = forward(llama, ids[:, start : start + 1], cache)
        with torch.inference_mode():
            assert_same(forward(llama, ids[:, start : start + 1], twin), logits)


def test_another_batch_size_is_refused(llama):
    cache = KVPCache(LLAMA, 10, scorer=by_key_norm)
    forward(llama, random_ids(2, 20), cache)
    with pytest.raises(ValueError, match=r"\[3, 2\], this cache holds \[2, 2\]"):
        forward(llama, random_ids(3, 1), cache)
