"""Watching a model: the attention that is observed is the model's own."""

import inspect

import pytest
import torch
import transformers
from families import FAMILIES, LAYERS, VOCAB, config, eager, make, random_ids

from python_ref.decoder import continue_from, forward, generate, prefill
from python_ref.model_info import inspect_model


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny models spend their time on waking threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", FAMILIES)
def test_observed_attention_is_the_models_own(family):
    model = make(family)
    ids = random_ids(40)
    _, expected = eager(model, ids)
    seen = {}

    def watch(call):
        weights = torch.zeros(1, *call.query.shape[1:3], call.key.shape[2])
        for first, logits in call.logit_blocks(3, 37):
            part = call.weights(logits).flatten(1, 2)
            weights[:, :, first : first + part.shape[2], : part.shape[3]] = part
        seen[call.layer] = weights[0]

    prefill(model, ids, watcher=watch)
    observed = torch.stack([seen[layer] for layer in range(LAYERS)])
    torch.testing.assert_close(observed[:, :, 3:37], expected[:, :, 3:37], atol=1e-5, rtol=0)
    if "sliding" in family or family in ("gemma2", "gpt-oss"):
        hidden = expected[..., 36, : 36 - 16 + 1] == 0
        assert hidden.all(dim=(1, 2)).any(), "no layer of this model has a window"


@pytest.mark.parametrize("family", FAMILIES)
def test_watching_changes_nothing(family):
    model = make(family)
    ids = random_ids(40)
    expected, _ = eager(model, ids)
    k, v = prefill(model, ids[:30], watcher=lambda call: None)
    logits = continue_from(model, k, v, 30, [ids[30:]], watcher=lambda call: None)
    torch.testing.assert_close(logits[0], expected[30:], atol=1e-4, rtol=1e-4)


def test_blocks_do_not_depend_on_their_size(monkeypatch):
    model = make("mistral-sliding")
    whole, parts = [], []

    def watch(call, into):
        into.append(torch.cat([w[..., :20] for _, w in call.group_blocks(19)], dim=2))

    prefill(model, random_ids(40), watcher=lambda call: watch(call, whole))
    monkeypatch.setattr("python_ref.attention_call.BLOCK_ELEMENTS", 4 * 40 * 3)
    prefill(model, random_ids(40), watcher=lambda call: watch(call, parts))
    assert whole[0].shape == (1, 2, 21, 20)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_a_half_precision_model_are_float32(dtype):
    """They are those of the model's own queries and keys, without another rounding."""
    model = make("qwen3", dtype)
    calls = []
    prefill(model, random_ids(30), watcher=calls.append)
    call = calls[1]
    assert call.query.dtype == dtype
    q, k = call.query[0].double(), call.key[0].double().repeat_interleave(3, dim=0)
    causal = torch.ones(30, 30, dtype=torch.bool).tril()
    expected = (q @ k.mT * 8**-0.5).masked_fill(~causal, -torch.inf).softmax(-1)
    ((first, weights),) = call.group_blocks()
    assert (first, weights.dtype) == (0, torch.float32)
    group = expected.unflatten(0, (2, 3)).amax(dim=1)
    torch.testing.assert_close(weights[0].double(), group, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "gemma2", "gpt-oss"])
def test_greedy_generation_is_what_the_model_would_say(family):
    model = make(family)
    context, prompts = random_ids(25), [random_ids(4, 1), random_ids(2, 2), random_ids(4, 3)]
    expected = []
    for prompt in prompts:
        ids = context + prompt
        for _ in range(6):
            ids.append(int(eager(model, ids)[0][-1].argmax()))
        expected.append(ids[25 + len(prompt) :])
    k, v = prefill(model, context)
    assert generate(model, k, v, 25, prompts, 6) == expected
    stop = expected[0][2]
    shortened = [said[: said.index(stop) + 1] if stop in said else said for said in expected]
    assert generate(model, k, v, 25, prompts, 6, stop=[stop]) == shortened
    assert k.shape[2] == 25


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_that_nobody_needs_are_left_out(family):
    model, ids = make(family), torch.tensor([random_ids(12)])
    every = forward(model, ids, transformers.DynamicCache(), 0).logits
    some = forward(model, ids, transformers.DynamicCache(), 0, last=3).logits
    assert some.shape == (1, 3, VOCAB)
    torch.testing.assert_close(some, every[:, -3:])


def test_sampling_is_seeded_and_follows_the_distribution():
    model = make("llama")
    k, v = prefill(model, random_ids(25))
    prompt = random_ids(3, 1)
    logits, _ = eager(model, random_ids(25) + prompt)
    expected = (logits[-1] / 0.7).softmax(-1)
    said = generate(model, k, v, 25, [prompt] * 500, 1, temperature=0.7, seed=5)
    assert said == generate(model, k, v, 25, [prompt] * 500, 1, temperature=0.7, seed=5)
    assert said != generate(model, k, v, 25, [prompt] * 500, 1, temperature=0.7, seed=6000)
    counts = torch.bincount(torch.tensor(said).flatten(), minlength=VOCAB) / 500
    assert (counts - expected).abs().sum() < 0.2


def test_generation_refuses_empty_prompts():
    model = make("llama")
    k, v = prefill(model, random_ids(5))
    with pytest.raises(ValueError, match="one is empty"):
        generate(model, k, v, 5, [[]], 3)
    with pytest.raises(ValueError, match="tokens: got 0"):
        generate(model, k, v, 5, [[1]], 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_models_geometry(family):
    model = make(family)
    info = inspect_model(model, "me")
    config = model.config
    assert (info.name, info.dtype, info.layers) == ("me", "float32", LAYERS)
    assert info.query_heads == config.num_attention_heads
    assert info.kv_heads == config.num_key_value_heads
    assert info.head_dim_k == info.head_dim_v == 8


def test_the_fingerprint_tells_models_apart():
    model = make("llama")
    before = inspect_model(model, "a").fingerprint
    assert inspect_model(make("llama"), "b").fingerprint == before
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    assert inspect_model(model, "a").fingerprint != before
    other = make("llama")
    other.config.rope_theta = 5.0
    assert inspect_model(other, "a").fingerprint != before


UNFIT = {
    "gpt2": (
        lambda: transformers.GPT2Config(
            vocab_size=VOCAB, n_positions=64, n_embd=24, n_layer=2, n_head=3
        ),
        "has no num_key_value_heads",
    ),
    "t5": (
        lambda: transformers.T5Config(
            vocab_size=VOCAB, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3
        ),
        "is an encoder-decoder",
    ),
    "mamba": (
        lambda: transformers.MambaConfig(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2),
        "has no num_attention_heads",
    ),
    "qwen3-next": (
        lambda: config(
            "Qwen3NextConfig",
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_experts=2,
            num_experts_per_tok=1,
            linear_num_value_heads=2,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
        r"without a KV cache \(linear_attention\)",
    ),
}


@pytest.mark.parametrize("family", UNFIT)
def test_models_that_cannot_be_traced(family):
    make_config, message = UNFIT[family]
    if family == "qwen3-next" and not hasattr(transformers, "Qwen3NextConfig"):
        pytest.skip("transformers has it since 4.57")
    kind = transformers.AutoModelForSeq2SeqLM if family == "t5" else None
    model = (kind or transformers.AutoModelForCausalLM).from_config(make_config()).eval()
    with pytest.raises(ValueError, match=message) as error:
        inspect_model(model, "some/model")
    assert f"some/model ({type(model).__name__})" in str(error.value)


def test_a_model_that_bypasses_the_attention_interface(monkeypatch):
    model = make("llama")
    attention = type(model.model.layers[0].self_attn)
    module = inspect.getmodule(attention)
    name = "ALL_ATTENTION_FUNCTIONS"
    own = dict.fromkeys(["sdpa", "kvp_replaced_sdpa"], module.eager_attention_forward)
    monkeypatch.setattr(module, name, type("Own", (dict,), {"get_interface": dict.get})(own))
    with pytest.raises(ValueError, match=r"0 of its 3 layers went through the attention"):
        inspect_model(model, "own")


def test_a_cache_of_another_shape_is_refused():
    model = make("llama")
    model.config.num_key_value_heads = 3  # the layers were made with 2
    with pytest.raises(ValueError, match=r"caches keys of shape \[3, 2, 2, 8\].*\[3, 3, 2\]"):
        inspect_model(model, "odd")
