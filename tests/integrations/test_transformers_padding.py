"""`KVPCache.attach`: padded batches compute what each of their sequences computes alone."""

import pytest
import torch
from helpers import assert_same
from integrations.tiny_models import (
    ATTENTION,
    CACHE,
    CONFIGS,
    LAYERS,
    _config,
    forward,
    generate,
    make_model,
    make_policy,
    random_ids,
)
from transformers import DynamicCache, Qwen2Config

from kvp_ext.integrations.transformers import KVPCache

LLAMA = CONFIGS["llama"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama():
    return make_model(LLAMA)


def left_padded(sequences):
    """Token ids and mask `[B, T]` of sequences of different length."""
    width = max(len(s) for s in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, width - len(sequence) :] = sequence
        mask[row, width - len(sequence) :] = 1
    return ids, mask


def sequences(*lengths, seed=0):
    return [random_ids(1, n, seed=seed + n)[0] for n in lengths]


def new_cache(budget=12, **options):
    return KVPCache(LLAMA, budget, policy=make_policy(LLAMA), recent=3, **options)


def test_a_ratio_of_unequal_lengths_in_union_mode(llama):
    ids, mask = left_padded(sequences(30, 18))
    cache = new_cache(0.5, mode="union", sinks=1)
    with torch.no_grad(), cache.attach(llama):
        llama(ids, attention_mask=mask, **{CACHE: cache})
    cache.evict()
    assert cache.lengths.amin((0, 2)).tolist() == cache.lengths.amax((0, 2)).tolist() == [15, 9]
    assert_same(cache.positions, cache.positions[:, :, :1].expand_as(cache.positions).clone())


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("budget", [12, 0.5, 100])
def test_left_padding_changes_nothing(llama, attention, budget):
    """Public fault 1: lengths 24, 16 and 7, budget 12: no pad kept, rows as without padding."""
    llama.set_attn_implementation(attention)
    prompts = sequences(24, 16, 7)
    ids, mask = left_padded(prompts)
    together = new_cache(budget)
    with together.attach(llama):
        tokens, logits = generate(llama, ids, together, 6, attention_mask=mask)
    for row, prompt in enumerate(prompts):
        alone = new_cache(budget)
        expected, expected_logits = generate(llama, prompt[None], alone, 6)
        assert_same(tokens[row, 24:], expected[0, len(prompt) :])
        torch.testing.assert_close(logits[row], expected_logits[0], atol=1e-4, rtol=0)
        for layer in range(LAYERS):
            for head in range(LLAMA.num_key_value_heads):
                held = together.positions[layer, row, head]
                assert_same(held[held >= 0], alone.positions[layer, 0, head])
        keys = [
            c.layers[1].keys[r][:, c.positions[1, r, 0] >= 0]
            for c, r in ((together, row), (alone, 0))
        ]
        torch.testing.assert_close(*keys, atol=1e-4, rtol=0)
    counts = {12: [12, 12, 7], 0.5: [12, 8, 4], 100: [24, 16, 7]}[budget]
    assert together.lengths[0, :, 0].tolist() == [n + 5 for n in counts]
    assert together.evictions == (0 if budget == 100 else 1)


@pytest.mark.parametrize("attention", ATTENTION)
def test_padding_between_turns(llama, attention):
    """Three turns, padded differently, evicted after each; row 2 fits its budget at first."""
    llama.set_attn_implementation(attention)
    turns = [sequences(24, 16, 5), sequences(9, 14, 3, seed=50), sequences(6, 2, 11, seed=90)]
    together = new_cache()
    logits, mask = [], torch.zeros(3, 0, dtype=torch.long)
    with together.attach(llama):
        for turn in turns:
            ids, turn_mask = left_padded(turn)
            mask = torch.cat([mask, turn_mask], dim=1)
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            logits.append(
                forward(llama, ids, together, attention_mask=mask, position_ids=positions)
            )
            # and a token of decoding, which everyone gets
            mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], dim=1)
            logits.append(
                forward(
                    llama,
                    torch.full((3, 1), 7),
                    together,
                    attention_mask=mask,
                    position_ids=mask.sum(-1, keepdim=True) - 1,
                )
            )
    assert together.evictions == 3
    assert together.get_seq_length() == 24 + 14 + 11 + 3
    for row in range(3):
        alone = new_cache()
        for i, turn in enumerate(turns):
            prompt = turn[row][None]
            expected = forward(llama, prompt, alone)
            got = logits[2 * i][row, -prompt.shape[1] :]
            torch.testing.assert_close(got, expected[0], atol=1e-4, rtol=0)
            expected = forward(llama, torch.tensor([[7]]), alone)
            torch.testing.assert_close(logits[2 * i + 1][row], expected[0], atol=1e-4, rtol=0)
        held = together.positions[0, row, 0]
        assert_same(held[held >= 0], alone.positions[0, 0, 0])


def test_a_second_generate_may_hide_what_ended_sequences_went_on_producing(llama):
    prompts = sequences(20, 15)
    ids, mask = left_padded(prompts)
    together = new_cache()
    with together.attach(llama):
        tokens, _ = generate(llama, ids, together, 6, attention_mask=mask)
        # Row 1 ended after 2 of its 6 tokens; then both are asked something more.
        ended = torch.ones(2, 6, dtype=torch.long)
        ended[1, 2:] = 0
        more, more_mask = left_padded(sequences(8, 5, seed=70))
        ids = torch.cat([tokens, more], dim=1)
        mask = torch.cat([mask, ended, more_mask], dim=1)
        _, logits = generate(llama, ids, together, 3, attention_mask=mask)
    for row, produced in ((0, 6), (1, 2)):
        alone = new_cache()
        prompt = prompts[row][None]
        first, _ = generate(llama, prompt, alone, produced)
        again = torch.cat([first, more[row : row + 1, more_mask[row] == 1]], dim=1)
        _, expected = generate(llama, again, alone, 3)
        torch.testing.assert_close(logits[row], expected[0], atol=1e-4, rtol=0)


def test_masks_that_take_back_what_an_eviction_judged_are_refused(llama):
    ids, mask = left_padded(sequences(20, 15))
    cache = new_cache()
    with cache.attach(llama):
        forward(llama, ids, cache, attention_mask=mask)
        cache.evict()
        longer = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
        hiding = longer.clone()
        hiding[0, 3] = 0
        with pytest.raises(ValueError, match="hides tokens that it showed when the cache was evi"):
            forward(llama, ids[:, :1], cache, attention_mask=hiding)
        showing = longer.clone()
        showing[1, 0] = 1
        with pytest.raises(ValueError, match="shows tokens that it hid"):
            forward(llama, ids[:, :1], cache, attention_mask=showing)
        with pytest.raises(ValueError, match=r"\[2, 1\], expected .* \[2, 21\]"):
            forward(llama, ids[:, :1], cache, attention_mask=longer[:, -1:])
        assert cache.get_seq_length() == 20
        forward(llama, ids[:, :1], cache, attention_mask=longer)
        assert cache.get_seq_length() == 21


@pytest.mark.parametrize("attention", ATTENTION)
def test_padding_that_the_cache_is_not_told_of_is_refused(llama, attention):
    llama.set_attn_implementation(attention)
    ids, mask = left_padded(sequences(20, 15))
    cache = new_cache()
    with pytest.raises(RuntimeError, match=r"padded: run inside `with cache\.attach"):
        generate(llama, ids, cache, 2, attention_mask=mask)
    assert cache.get_seq_length() == 0
    with cache.attach(llama):
        generate(llama, ids, cache, 2, attention_mask=mask)
    with pytest.raises(RuntimeError, match="this cache has seen padding"):
        forward(llama, ids[:, :1], cache)


def test_equal_rows_need_no_attach_and_attach_changes_nothing_for_them(llama):
    ids = random_ids(2, 30)
    plain, attached = new_cache(), new_cache()
    expected, expected_logits = generate(llama, ids, plain, 4, attention_mask=torch.ones_like(ids))
    with attached.attach(llama):
        tokens, logits = generate(llama, ids, attached, 4, attention_mask=torch.ones_like(ids))
        assert attached._entries.mask is None
    assert_same(tokens, expected)
    assert_same(logits, expected_logits)
    forward(llama, ids[:, :1], attached)  # and it may go on without


def test_beam_search_over_a_padded_batch(llama):
    prompts = sequences(20, 15)
    ids, mask = left_padded(prompts)
    beams = {"max_new_tokens": 4, "num_beams": 3, "do_sample": False}
    cache = new_cache()
    with cache.attach(llama):
        tokens = llama.generate(ids, attention_mask=mask, **beams, **{CACHE: cache})
    for row, prompt in enumerate(prompts):
        expected = llama.generate(prompt[None], **beams, **{CACHE: new_cache()})
        assert_same(tokens[row, 20:], expected[0, len(prompt) :])


def test_rows_of_a_padded_cache_can_be_selected(llama):
    ids, mask = left_padded(sequences(20, 15, 9))
    cache = new_cache()
    mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], dim=1)
    with cache.attach(llama):
        prompt = mask[:, :-1]
        forward(llama, ids, cache, attention_mask=prompt)
    rows = torch.tensor([2, 0])
    selected = cache.fork()
    selected.batch_select_indices(rows)
    with cache.attach(llama), selected.attach(llama):  # each sees its own forwards only
        expected = forward(llama, ids[:, -1:], cache, attention_mask=mask)
        logits = forward(llama, ids[rows, -1:], selected, attention_mask=mask[rows])
    torch.testing.assert_close(logits, expected[rows], atol=1e-4, rtol=0)


def test_crop_counts_padding_as_tokens_but_not_as_positions(llama):
    cache = new_cache()
    ids, mask = left_padded(sequences(20, 15))
    with cache.attach(llama):
        forward(llama, ids, cache, attention_mask=mask)
    cache.crop(-17)
    assert cache.get_seq_length() == 3
    assert cache.lengths[0, :, 0].tolist() == [3, 0]
    assert cache._entries.next_pos.tolist() == [3, 0]


# ---- nothing stays behind --------------------------------------------------------------------


def hooks_of(model):
    return [h for m in model.modules() for h in (*m._forward_pre_hooks, *m._forward_hooks)]


def test_the_model_is_left_as_it_was_after_an_exception(llama):
    """Public fault 13."""
    before, methods = hooks_of(llama), dict(vars(llama))
    cache = new_cache()

    def fail():
        with cache.attach(llama, query_window=4):
            assert len(hooks_of(llama)) > len(before)
            forward(llama, random_ids(1, 20), cache)
            raise KeyError("anything")

    with pytest.raises(KeyError):
        fail()
    assert hooks_of(llama) == before
    assert vars(llama).keys() == methods.keys()
    assert cache.get_seq_length() == 20
    with pytest.raises(ValueError, match="query_window is 0"), cache.attach(llama, query_window=0):
        pass
    assert hooks_of(llama) == before
    with cache.attach(llama):  # it can be attached again, but not twice at once
        with pytest.raises(RuntimeError, match="already attached"), cache.attach(llama):
            pass
        forward(llama, random_ids(1, 1), cache)
    assert hooks_of(llama) == before


def test_other_caches_of_the_model_are_not_touched(llama):
    ids, mask = left_padded(sequences(20, 15))
    expected, _ = generate(llama, ids, DynamicCache(config=LLAMA), 3, attention_mask=mask)
    cache = new_cache()
    with cache.attach(llama):
        got, _ = generate(llama, ids, DynamicCache(config=LLAMA), 3, attention_mask=mask)
    assert_same(got, expected)
    assert cache.get_seq_length() == 0


# ---- refusals --------------------------------------------------------------------------------


def test_padding_with_an_untested_attention_is_refused(llama):
    ids, mask = left_padded(sequences(20, 15))
    cache = new_cache()
    before = llama.config._attn_implementation
    llama.config._attn_implementation = "flash_attention_2"
    try:
        with cache.attach(llama), pytest.raises(ValueError, match="is 'flash_attention_2', exp"):
            forward(llama, ids, cache, attention_mask=mask)
    finally:
        llama.config._attn_implementation = before


@pytest.mark.parametrize("attention", ATTENTION)
def test_padding_with_sliding_windows(attention):
    """Full and sliding layers get masks of their own; rows are as without padding."""
    config = _config(
        Qwen2Config, 4, 2, use_sliding_window=True, sliding_window=8, max_window_layers=2
    )
    model = make_model(config, attention)

    def fresh():
        return KVPCache(config, 8, scorer=lambda k, v, pos, queries: -k.norm(dim=-1), recent=2)

    prompts = sequences(20, 15)
    ids, mask = left_padded(prompts)
    together = fresh()
    with together.attach(model):
        tokens, logits = generate(model, ids, together, 5, attention_mask=mask)
    assert together.evictions == 1
    for row, prompt in enumerate(prompts):
        expected, expected_logits = generate(model, prompt[None], fresh(), 5)
        assert_same(tokens[row, 20:], expected[0, len(prompt) :])
        torch.testing.assert_close(logits[row], expected_logits[0], atol=1e-4, rtol=0)


def test_a_prepared_mask_is_refused(llama):
    cache = new_cache()
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()
    with cache.attach(llama), pytest.raises(ValueError, match=r"\[1, 1, 20, 20\], expected"):
        forward(llama, random_ids(1, 20), cache, attention_mask=mask)
