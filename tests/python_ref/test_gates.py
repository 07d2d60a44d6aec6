"""The gate, its scores and its file; hidden states of every family of models."""

import json

import pytest
import torch
from families import FAMILIES, make, random_ids
from safetensors.torch import load_file, save_file

import kvp_ext
from python_ref.gates import gate_file
from python_ref.gates.gate import RetentionGate, gate_scores, score
from python_ref.gates.hidden import attention_modules, hidden_states, run


def gate(**more):
    options = {"width": 6, "bias": 1.0, "generator": torch.Generator().manual_seed(0)} | more
    return RetentionGate(3, 2, 8, **options)


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# The network


def test_log_beta_is_the_network_that_it_says():
    made, hidden = gate(), random(3, 2, 5, 8)
    got = made.log_beta(hidden)
    assert got.shape == (3, 2, 2, 5)
    silu = torch.nn.functional.silu
    x = silu(hidden[2, 1, 4] @ made.first_weight[2].T + made.first_bias[2])
    x = silu(x @ made.second_weight[2].T + made.second_bias[2])
    u = x @ made.last_weight.T + made.last_bias
    torch.testing.assert_close(got[2, 1, :, 4], u.sigmoid().log())
    torch.testing.assert_close(got[1], made.layer_log_beta(1, hidden[1]))


def test_an_untrained_gate_lets_nothing_fade():
    untrained = RetentionGate(2, 1, 8)
    log_beta = untrained.log_beta(random(2, 1, 5, 8))
    assert untrained.width == 512
    assert (log_beta < 0).all()  # not rounded to 0, from where nothing would lead away
    torch.testing.assert_close(log_beta, torch.full_like(log_beta, -1.5e-8), rtol=2, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RetentionGate(0, 1, 8), "layers: got 0, expected at least 1"),
        (lambda: gate().log_beta(random(2, 1, 5, 8)), r"expected \[3, B, T, 8\]"),
        (lambda: gate().log_beta(random(3, 1, 5, 7)), r"expected \[3, B, T, 8\]"),
        (lambda: gate().layer_log_beta(0, random(1, 5, 7)), r"expected \[B, T, 8\]"),
        (lambda: gate().layer_log_beta(3, random(1, 5, 8)), "layer: got 3, expected 0 to 2"),
        (lambda: score(random(3, 2, 2, 5), torch.arange(4), 3), r"pos: got shape \(4,\)"),
        (
            lambda: score(random(3, 2, 2, 5), torch.arange(5), torch.zeros(3)),
            r"now: got shape \[3\], expected an int or \[2\]",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Scores


def test_scores_are_what_is_left_at_the_next_token():
    log_beta = -random(2, 2, 1, 4).abs()
    pos = torch.tensor([[0, 3, 7, -1], [2, -1, 4, 5]])
    got = score(log_beta, pos, torch.tensor([7, 9]))
    assert got[1, 0, 0, 1] == (7 + 1 - 3) * log_beta[1, 0, 0, 1]
    assert got[0, 1, 0, 3] == (9 + 1 - 5) * log_beta[0, 1, 0, 3]
    assert got[:, 0, :, 3].isnan().all()
    assert got[:, 1, :, 1].isnan().all()
    assert got.isnan().sum() == 4


def test_gate_scores_are_at_the_last_token_of_each_sequence():
    made, hidden = gate(), random(3, 2, 4, 8)
    pos = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]])
    got = gate_scores(made, hidden, pos)
    expected = score(made.log_beta(hidden), pos, torch.tensor([3, 1]))
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert not got.requires_grad


def test_a_budget_of_the_model_goes_to_the_heads_that_retain():
    """Head 1 of layer 2 forgets slowly, so a model-wide budget leaves it more entries."""
    log_beta = torch.full((3, 1, 2, 20), -1.0)
    log_beta[2, 0, 1] = -0.01
    pos = torch.arange(20)
    chosen = kvp_ext.select(score(log_beta, pos, 19), 36, pos=pos, sinks=0, recent=0, mode="model")
    assert chosen.lengths[2, 0, 1] == 20
    assert chosen.lengths.sum() == 36


# The file


def test_a_file_gives_back_the_gate(tmp_path):
    made = gate(name="g", model_fingerprint="abc", provenance={"steps": 3})
    gate_file.write(made, tmp_path / "g.safetensors", dtype=torch.float32)
    read = gate_file.read(tmp_path / "g.safetensors")
    hidden = random(3, 1, 4, 8)
    assert torch.equal(read.log_beta(hidden), made.log_beta(hidden))
    assert (read.name, read.model_fingerprint) == ("g", "abc")
    assert read.provenance == {"steps": 3}
    assert not any(p.requires_grad for p in read.parameters())
    (tmp_path / "plain").touch()
    modes = [(tmp_path / name).stat().st_mode for name in ("g.safetensors", "plain")]
    assert modes[0] == modes[1]  # whoever may read a file of the user's may read a gate
    gate_file.write(made, tmp_path / "half.safetensors")
    half = gate_file.read(tmp_path / "half.safetensors")
    assert half.first_weight.dtype == torch.float32
    torch.testing.assert_close(half.first_weight, made.first_weight.half().float())
    sizes = [(tmp_path / name).stat().st_size for name in ("g.safetensors", "half.safetensors")]
    assert sizes[1] < sizes[0]


def test_a_gate_that_does_not_fit_16_bits_is_not_written(tmp_path):
    made = gate()
    made.last_weight.data[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"last.weight holds values that are not finite"):
        gate_file.write(made, tmp_path / "g.safetensors")
    assert not list(tmp_path.iterdir())


def change_file(path, *, tensors=None, **metadata):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        before = file.metadata()
    after = {k: v for k, v in (before | metadata).items() if v is not None}
    save_file({**load_file(path), **(tensors or {})}, path, metadata=after)


def geometry(**changes):
    return json.dumps({"layers": 3, "kv_heads": 2, "model_dim": 8, "width": 6} | changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "kvp-policy"}, "format is 'kvp-policy', expected 'kvp-gate'"),
        ({"format_version": "9"}, "format_version is '9', this kvp-ext reads 1"),
        ({"geometry": None}, "metadata 'geometry' is missing or not JSON"),
        ({"geometry": "[]"}, "metadata 'geometry' is not a JSON object"),
        ({"geometry": geometry(layers=0)}, "geometry.layers is 0, expected an int >= 1"),
        ({"geometry": geometry(width=True)}, "geometry.width is True"),
        # Far more than any memory: refused by the tensors' headers.
        ({"geometry": geometry(width=2**30)}, r"first.weight is F16 \[3, 6, 8\], expected"),
        ({"provenance": "{"}, "metadata 'provenance' is missing or not JSON"),
        ({"tensors": {"more": torch.zeros(1)}}, r"unexpected tensors \['more'\]"),
        ({"tensors": {"last.bias": torch.zeros(2, dtype=torch.int32)}}, "last.bias is I32"),
        ({"tensors": {"last.bias": torch.tensor([0, torch.nan])}}, "holds NaN or infinity"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, change, message):
    path = tmp_path / "g.safetensors"
    gate_file.write(gate(), path)
    change_file(path, **change)
    with pytest.raises(ValueError, match=message):
        gate_file.read(path)


def test_a_file_cut_short_or_missing_is_refused(tmp_path):
    path = tmp_path / "g.safetensors"
    with pytest.raises(FileNotFoundError, match="does not exist"):
        gate_file.read(path)
    gate_file.write(gate(), path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="malformed or cut short"):
        gate_file.read(path)


# Hidden states


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_what_the_input_norm_gives(family):
    model = make(family)
    ids = torch.tensor([random_ids(20), random_ids(20, seed=1)])
    normed = {}
    hooks = [
        layer.input_layernorm.register_forward_hook(
            lambda _, args, output, layer=i: normed.__setitem__(layer, output)
        )
        for i, layer in enumerate(model.model.layers)
    ]
    hidden, last = run(model, ids)
    for hook in hooks:
        hook.remove()
    assert hidden.shape == (3, 2, 20, model.config.hidden_size)
    assert torch.equal(hidden, torch.stack([normed[i] for i in range(3)]))
    with torch.no_grad():
        assert torch.equal(last, model.model(ids).last_hidden_state)


def test_new_tokens_alone_are_seen_in_a_generation():
    model, seen = make("qwen3"), []
    with hidden_states(model, lambda layer, hidden: seen.append((layer, hidden.shape[1]))):
        model.generate(torch.tensor([random_ids(9)]), max_new_tokens=3, do_sample=False)
    assert seen == [(0, 9), (1, 9), (2, 9), *[(0, 1), (1, 1), (2, 1)] * 2]


def test_hooks_are_removed_whatever_happens():
    model = make("llama")

    def refuse(layer, hidden):
        raise KeyError(layer)

    with pytest.raises(KeyError), hidden_states(model, refuse):
        model(torch.tensor([[1, 2]]))
    assert not any(module._forward_pre_hooks for module in attention_modules(model))
    model(torch.tensor([[1, 2]]))


def test_a_model_without_numbered_attention_is_refused():
    with (
        pytest.raises(ValueError, match="expected one attention module for each layer"),
        hidden_states(torch.nn.Linear(2, 2), print),
    ):
        pass
