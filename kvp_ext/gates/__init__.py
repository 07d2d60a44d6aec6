"""Retention gates that come with kvp-ext, and gate files by path.

    gate = load_gate("smollm2-135m-instruct")

`python_ref.gates` says what a gate is; `kvp-ext train-gate` trains one.
"""

from __future__ import annotations

from importlib import resources
from os import PathLike
from pathlib import Path

import torch

from python_ref.gates import gate_file
from python_ref.gates.gate import RetentionGate, gate_scores, score

__all__ = ["RetentionGate", "gate_scores", "gates", "load_gate", "score"]


def gates() -> list[str]:
    """Names of the gates shipped with kvp-ext, for `load_gate`."""
    names = (entry.name for entry in resources.files(__name__).iterdir())
    return sorted(n.removesuffix(".safetensors") for n in names if n.endswith(".safetensors"))


def load_gate(
    name_or_path: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> RetentionGate:
    """Loads a shipped gate by name (see `gates`) or any gate file by path.

    Raises:
        ValueError: neither a shipped name nor a file, or a malformed file.
        FileNotFoundError: a path that does not exist.
    """
    if not isinstance(name_or_path, str | PathLike):
        raise TypeError(f"name_or_path is {name_or_path!r}, expected a name or a path")
    name = str(name_or_path)
    if name in gates():
        shipped = resources.files(__name__) / f"{name}.safetensors"
        with resources.as_file(shipped) as path:
            return gate_file.read(path, device=device)
    if isinstance(name_or_path, str) and not Path(name).suffix and "/" not in name:
        known = ", ".join(gates()) or "none"
        raise ValueError(
            f"gate {name!r} is not shipped with kvp-ext (shipped: {known}), expected one of these "
            "or the path of a gate file"
        )
    return gate_file.read(name_or_path, device=device)
