"""The loss and its gradients against a dense, straightforward one."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, config, make, random_ids

from python_ref import attention_call
from python_ref.attention_call import AttentionCall
from python_ref.gates import loss as losses
from python_ref.gates.attention import fading, fading_output
from python_ref.gates.hidden import run
from python_ref.gates.loss import capacity_loss, distillation, output_head, retained


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that every loop runs several times, the last time with less."""
    monkeypatch.setattr(attention_call, "BLOCK_ELEMENTS", 700)
    monkeypatch.setattr(losses, "BLOCK_ELEMENTS", 500)
    monkeypatch.setattr(losses, "BLOCK_TOKENS", 5)


def random(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def leaf(x):
    return x.detach().clone().requires_grad_()


def ages(tokens, dtype):
    t = torch.arange(tokens, dtype=dtype)
    return t[:, None] - t


def dense_attention(q, k, v, log_beta, scale):
    """[B, T, H G, Dv], every matrix at once."""
    groups = q.shape[1] // k.shape[1]
    k, v, log_beta = (x.repeat_interleave(groups, dim=1) for x in (k, v, log_beta))
    tokens = k.shape[2]
    logits = scale * q @ k.mT + ages(tokens, q.dtype) * log_beta[:, :, None]
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return (logits.masked_fill(~causal, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def dense_capacity(log_beta, capacity):
    tokens = log_beta.shape[-1]
    rows = log_beta.shape[0] * log_beta.shape[2]
    held = (log_beta[..., None, :] * ages(tokens, log_beta.dtype)).exp().tril().sum(dim=(0, 2, 4))
    loss = 0
    for t in range(tokens):
        over = (held[:, t] - capacity * rows).clamp(min=0)
        loss = loss + over / max((t + 1) * rows - capacity * rows, 1)
    return held, loss.mean() / tokens


def dense_distillation(fading, full, targets, weight):
    log, full_log = (fading @ weight.mT).log_softmax(-1), (full @ weight.mT).log_softmax(-1)
    kl = (full_log.exp() * (full_log - log)).sum(-1).mean()
    return kl, F.cross_entropy((fading @ weight.mT).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("groups", [1, 3, 7])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_attention_and_its_gradients_are_the_dense_ones(small_blocks, groups, dtype, close):
    heads, tokens = 2, 23
    q = random(2, heads * groups, tokens, 4, dtype=dtype)
    k, v = random(2, heads, tokens, 4, seed=1, dtype=dtype), random(2, heads, tokens, 6, seed=2)
    log_beta = F.logsigmoid(2 * random(2, heads, tokens, seed=3) + 1).to(dtype)
    inputs = [leaf(x) for x in (q, k, v.to(dtype), log_beta)]
    dense = [leaf(x) for x in inputs]
    call = AttentionCall(0, inputs[0], inputs[1], None, 0.7)
    assert call.block_rows < tokens

    output = fading_output(call, *inputs[2:])
    expected = dense_attention(*dense, 0.7)
    wanted = random(*expected.shape, seed=4, dtype=dtype)
    (output * wanted).sum().backward()
    (expected * wanted).sum().backward()

    torch.testing.assert_close(output, expected, rtol=close, atol=close)
    for one, other in zip(inputs, dense, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=close, atol=10 * close)


def test_attention_without_fading_is_attention():
    q, k, v = (random(1, 4, 40, 8, seed=i) for i in range(3))
    output = fading_output(AttentionCall(0, q, k, None, 8**-0.5), v, torch.zeros(1, 4, 40))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


def test_attention_refuses_a_cache():
    q, k = random(1, 2, 3, 4), random(1, 2, 5, 4)
    with pytest.raises(ValueError, match="3 queries and 5 keys, expected a whole sequence"):
        fading_output(AttentionCall(0, q, k, None, 1.0), k, torch.zeros(1, 2, 5))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("capacity", [2.0, 5.5, 100.0])
def test_capacity_and_its_gradient_are_the_dense_ones(small_blocks, dtype, close, capacity):
    start = F.logsigmoid(random(3, 2, 2, 17) + 2).to(dtype)
    log_beta, dense = leaf(start), leaf(start)
    held = retained(log_beta)
    expected_held, expected = dense_capacity(dense, capacity)
    loss = capacity_loss(held, capacity, rows=6)
    torch.testing.assert_close(held, expected_held, rtol=close, atol=close)
    torch.testing.assert_close(loss, expected, rtol=close, atol=close)
    assert (loss == 0) == (capacity == 100)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(log_beta.grad, dense.grad, rtol=close, atol=close)


def test_what_does_not_fade_is_all_held():
    held = retained(torch.zeros(3, 1, 2, 9))
    assert held.tolist() == [[6.0 * t for t in range(1, 10)]]
    # Above the capacity of 4 everything is too much, whatever t: the hinge is 1.
    assert capacity_loss(held, 4, rows=6).item() == pytest.approx(5 / 9)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_distillation_and_its_gradient_are_the_dense_ones(small_blocks, dtype, close):
    start, full = random(2, 9, 6, dtype=dtype), random(2, 9, 6, seed=1, dtype=dtype)
    weight = random(13, 6, seed=2, dtype=dtype)
    targets = torch.arange(18).view(2, 9) % 13
    fading, dense = leaf(start), leaf(start)
    got = distillation(fading, full, targets, lambda x: x @ weight.mT)
    kl, cross_entropy = dense_distillation(dense, full, targets, weight)
    torch.testing.assert_close(got.kl, kl, rtol=close, atol=close)
    torch.testing.assert_close(got.cross_entropy, cross_entropy, rtol=close, atol=close)
    torch.testing.assert_close(got.loss, (kl + cross_entropy) / 2, rtol=close, atol=close)
    same = distillation(full, full, targets, lambda x: x @ weight.mT)
    assert same.kl.item() == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(same.cross_entropy, got.full_cross_entropy)
    assert not got.kl.requires_grad
    (3 * got.loss).backward()
    (3 * (kl + cross_entropy) / 2).backward()
    torch.testing.assert_close(fading.grad, dense.grad, rtol=close, atol=close)


# Through a model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_whose_tokens_do_not_fade_is_the_model(family):
    model = make(family)
    ids = torch.tensor([random_ids(40)])
    hidden, last = run(model, ids)
    none = torch.zeros(len(hidden), 1, model.config.num_key_value_heads, 40)
    with torch.no_grad(), fading(model, none):
        faded = model.base_model(ids, use_cache=False).last_hidden_state
    torch.testing.assert_close(faded, last, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(output_head(model)(last), model(ids).logits)


def test_a_token_that_fades_at_once_is_not_seen():
    """Every layer then attends to the token itself alone, so no token depends on another."""
    model = make("llama")
    ids = torch.tensor([random_ids(12)])
    at_once = torch.full((3, 1, 2, 12), -1e4)
    with torch.no_grad(), fading(model, at_once):
        last = model.base_model(ids, use_cache=False).last_hidden_state
        ids[0, :6] = 5
        changed = model.base_model(ids, use_cache=False).last_hidden_state
    torch.testing.assert_close(changed[:, 6:], last[:, 6:])
    assert not torch.allclose(changed[:, :6], last[:, :6])


@pytest.mark.parametrize("groups", [1, 3, 7])
def test_gradients_through_a_model_are_finite_differences(small_blocks, groups):
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config("LlamaConfig", query_heads=2 * groups, kv_heads=2)
    )
    model = model.double().eval().requires_grad_(False)
    ids = torch.tensor([random_ids(11)])
    _, full = run(model, ids)
    head = output_head(model)
    log_beta = leaf(F.logsigmoid(random(3, 1, 2, 11) + 1))

    def loss(log_beta):
        with fading(model, log_beta):
            last = model.base_model(ids, use_cache=False).last_hidden_state
            distilled = distillation(last[:, :-1], full[:, :-1], ids[:, 1:], head)
            held = retained(log_beta)
            return distilled.loss + capacity_loss(held, 2, rows=6)

    loss(log_beta).backward()
    direction = random(3, 1, 2, 11, seed=9)
    step = 2e-3  # a norm computes in float32
    with torch.no_grad():
        ahead, behind = (loss(log_beta + s * step * direction) for s in (1, -1))
    slope = (ahead - behind).item() / (2 * step)
    assert (log_beta.grad * direction).sum().item() == pytest.approx(slope, rel=2e-3)


def test_the_attention_is_restored_whatever_happens():
    model = make("llama")
    before = model.config._attn_implementation
    with pytest.raises(KeyError), fading(model, torch.zeros(3, 1, 2, 4)):
        raise KeyError
    assert model.config._attn_implementation == before
    model.config._attn_implementation = "kvp_replaced_sdpa"
    with pytest.raises(RuntimeError, match="within `replaced_attention` only"):
        model(torch.tensor([[1, 2]]))


def test_a_head_that_is_more_than_its_embedding_is_refused():
    model = make("llama")
    forward = model.forward

    def scaled(*args, **kwargs):
        output = forward(*args, **kwargs)
        return dataclasses.replace(output, logits=7 * output.logits)

    model.forward = scaled
    with pytest.raises(ValueError, match="logits of LlamaForCausalLM are not its output embedding"):
        output_head(model)
