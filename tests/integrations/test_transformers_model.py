"""`KVPCache` on the real model."""

import pytest
import torch
from helpers import assert_same
from integrations.tiny_models import CACHE, forward, generate, reference_logits
from transformers import DynamicCache

from kvp_ext import Policy
from kvp_ext.integrations import smollm2
from kvp_ext.integrations.transformers import KVPCache

pytestmark = pytest.mark.model

TEXT = (
    "The lighthouse keeper wrote the weather into a book every evening. On Monday there was fog, "
    "on Tuesday there was rain, and on Wednesday a ship with red sails came into the harbour. "
    "Nobody knew its captain. The keeper asked the harbour master, who asked the fishermen, who "
    "had seen the ship before, in the north, where the ice begins. It carried salt and oranges."
)


@pytest.fixture(scope="module")
def smollm():
    model, tokenizer = smollm2.load()
    return model, tokenizer(TEXT, return_tensors="pt").input_ids


@pytest.fixture(scope="module")
def policy():
    return Policy.random(layers=30, kv_heads=3, head_dim=64)


def test_logits_are_those_of_the_full_cache_with_evicted_keys_hidden(smollm, policy):
    model, ids = smollm
    prompt = ids.shape[1] - 6
    cache = KVPCache(model.config, 0.4, policy=policy, recent=8)
    logits = [forward(model, ids[:, :prompt], cache), forward(model, ids[:, prompt:], cache)]
    kept = cache.positions[:, 0, :, :-6]
    assert kept.shape[2] == round(0.4 * prompt)
    expected = reference_logits(model, ids, [(prompt, kept)])
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=2e-3, rtol=0)


def test_generate_with_and_without_eviction(smollm, policy):
    model, ids = smollm
    plain, _ = generate(model, ids, DynamicCache(config=model.config), 5)
    roomy, _ = generate(model, ids, KVPCache(model.config, 1.0, policy=policy), 5)
    assert_same(roomy, plain)
    cache = KVPCache(model.config, 32, policy=policy)
    model.generate(ids, max_new_tokens=5, do_sample=False, **{CACHE: cache})
    assert cache.evictions == 1
    assert cache.lengths.eq(32 + 4).all()
    assert cache.get_seq_length() == ids.shape[1] + 4
