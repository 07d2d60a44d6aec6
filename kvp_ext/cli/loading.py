"""What several commands read from the command line: a model, a range of lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_model(name: str, *, device: str = "auto", dtype: str = "auto") -> tuple[Any, Any]:
    """A transformers model in eval mode and its tokenizer.

    Args:
        name: a Hugging Face name or folder, or "smollm2" for the packaged model.
        device: "auto" is a GPU if there is one.
        dtype: "auto" is the checkpoint's.

    Raises:
        ValueError: no such dtype or device.
        FileNotFoundError: no such model.
        ModuleNotFoundError: a package is missing.
    """
    import torch

    if dtype not in DTYPES:
        raise ValueError(f"--dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"--device: got {device!r} ({error})") from None
    precision = None if dtype == "auto" else getattr(torch, dtype)
    model: Any
    if name == "smollm2":
        from kvp_ext.integrations import smollm2

        model, tokenizer = smollm2.load()
    else:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        # A name on the hub is one or two words; anything else can only be a folder.
        folder = name.startswith((".", "/", "~")) or name.count("/") > 1
        if folder and not Path(name).expanduser().is_dir():
            raise FileNotFoundError(f"--model: there is no folder {name}")
        name = str(Path(name).expanduser()) if folder else name
        try:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=precision or "auto")
            tokenizer = AutoTokenizer.from_pretrained(name)
        except OSError as error:
            raise FileNotFoundError(f"--model: {error}") from error
    return model.to(device=place, dtype=precision).eval(), tokenizer


def parse_lengths(text: str) -> tuple[int, int]:
    """ "256:2000" as (256, 2000); one number is both ends.

    Raises:
        ValueError: it is not that.
    """
    first, colon, second = text.partition(":")
    try:
        span = int(first), int(second if colon else first)
    except ValueError:
        span = 0, 0
    if not 1 <= span[0] <= span[1]:
        raise ValueError(f"--lengths: got {text!r}, expected SHORTEST:LONGEST such as 256:2000")
    return span
