"""`Rope` against what the models themselves compute."""

import pytest
import torch
from families import FAMILIES, make, random_ids

from python_ref.decoder import prefill
from python_ref.rope import Rope, output_grams, rope_of


@pytest.mark.parametrize("family", FAMILIES)
def test_unrotating_gives_what_the_projection_gave(family):
    model = make(family)
    ids = random_ids(30)
    calls, projected = [], []

    def see(module, args, output):
        projected.append(output.unflatten(-1, (-1, 8))[0].transpose(0, 1))

    hooks = []
    for layer in model.model.layers:
        attention = layer.self_attn
        if hasattr(attention, "k_norm"):
            hooks.append(
                attention.k_norm.register_forward_hook(
                    lambda module, args, output: projected.append(output[0].transpose(0, 1))
                )
            )
        elif hasattr(attention, "k_proj"):
            hooks.append(attention.k_proj.register_forward_hook(see))
        else:
            heads = model.config.num_attention_heads
            hooks.append(
                attention.qkv_proj.register_forward_hook(
                    lambda module, args, output, heads=heads: projected.append(
                        output.unflatten(-1, (-1, 8))[0].transpose(0, 1)[heads:].chunk(2)[0]
                    )
                )
            )
    prefill(model, ids, watcher=calls.append)
    for hook in hooks:
        hook.remove()
    rope = rope_of(model)
    pos = torch.arange(30)
    for call, raw in zip(calls, projected, strict=True):
        torch.testing.assert_close(rope.unrotate(call.key[0], pos), raw, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(rope.rotate(raw, pos), call.key[0], atol=1e-4, rtol=1e-4)


def test_the_mean_rotation_is_the_mean_of_rotations():
    rope = Rope(torch.tensor([1.0, 0.1]), scaling=1.5)
    x = torch.randn(7, 6)
    expected = torch.stack([rope.rotate(x, torch.full((7,), t)) for t in range(40, 60)]).mean(0)
    matrix = rope.mean_rotation(40, 20, 6)
    torch.testing.assert_close((x.double() @ matrix.T).float(), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="count: got 0"):
        rope.mean_rotation(0, 0, 6)
    with pytest.raises(ValueError, match="x: got 3 channels, expected at least 4"):
        rope.rotate(torch.zeros(2, 3), torch.arange(2))


def test_positions_far_out_stay_exact():
    rope = Rope(torch.tensor([1.0, 0.7]))
    x = torch.randn(1, 4)
    far = torch.tensor([100_003])
    exact = Rope(rope.frequencies.double()).rotate(x.double(), far)
    torch.testing.assert_close(rope.rotate(x, far).double(), exact, atol=1e-6, rtol=1e-6)


def test_gram_matrices_give_the_norm_of_what_a_head_writes():
    model = make("qwen2")
    grams = output_grams(model)
    config = model.config
    heads = config.num_attention_heads
    assert grams.shape == (config.num_hidden_layers, heads, 8, 8)
    v = torch.randn(8)
    for layer, head in ((0, 0), (2, heads - 1)):
        weight = model.model.layers[layer].self_attn.o_proj.weight[:, head * 8 : (head + 1) * 8]
        expected = (weight @ v).square().sum()
        torch.testing.assert_close(v @ grams[layer, head] @ v, expected)


def test_models_without_one_fixed_rotary_embedding_are_refused():
    model = make("llama")
    rotary = model.model.rotary_emb
    rotary.rope_type = "dynamic"
    with pytest.raises(ValueError, match="frequencies that change with the length .dynamic"):
        rope_of(model)
    with pytest.raises(ValueError, match="has 0 rotary embeddings, expected one"):
        rope_of(torch.nn.Linear(2, 2))
