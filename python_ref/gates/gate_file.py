"""The gate file: one safetensors file, never pickle.

Metadata (strings): `format` = "kvp-gate", `format_version`, `name`, `model_fingerprint` and JSON
under `geometry` (everything needed to know every tensor's shape before reading one) and
`provenance`. Tensors: those of `gate_tensor_shapes`, all of one float dtype; 16 bits are enough.
"""

from __future__ import annotations

from os import PathLike

import torch

from python_ref.gates.gate import RetentionGate, gate_tensor_shapes
from python_ref.tensor_file import Header, Kind

KIND = Kind("gate file", format="kvp-gate", version=1, dtypes=("F32", "F16", "BF16"))

_SIZES = ("layers", "kv_heads", "model_dim", "width")


def write(
    gate: RetentionGate, path: str | PathLike[str], *, dtype: torch.dtype = torch.float16
) -> None:
    """Writes `gate` to `path`, whole or not at all.

    Raises:
        ValueError: a weight is not finite in `dtype`.
    """
    tensors = {
        name: getattr(gate, name.replace(".", "_")).detach().to("cpu", dtype).contiguous()
        for name in _shapes(gate)
    }
    for name, t in tensors.items():
        if not bool(torch.isfinite(t).all()):
            raise ValueError(f"gate: {name} holds values that are not finite in {dtype}")
    metadata = {
        "name": gate.name,
        "model_fingerprint": gate.model_fingerprint,
        "geometry": {key: getattr(gate, key) for key in _SIZES},
        "provenance": gate.provenance,
    }
    KIND.write(path, tensors, metadata)


def read(path: str | PathLike[str], *, device: torch.device | str = "cpu") -> RetentionGate:
    """Reads a gate file; the gate's weights are fp32 and want no gradient.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a gate file, a newer format, or contents that do not fit.
    """
    header, tensors = KIND.read(path, lambda h: gate_tensor_shapes(**_sizes(h)), device=device)
    sizes = _sizes(header)
    width = sizes.pop("width")
    with torch.device("meta"):
        gate = RetentionGate(
            *sizes.values(),
            width=width,
            name=header.text("name"),
            model_fingerprint=header.text("model_fingerprint"),
            provenance=header.json("provenance"),
        )
    state = {name.replace(".", "_"): t.float() for name, t in tensors.items()}
    gate.load_state_dict(state, assign=True)
    return gate.requires_grad_(False)


def _shapes(gate: RetentionGate) -> dict[str, tuple[int, ...]]:
    return gate_tensor_shapes(gate.layers, gate.kv_heads, gate.model_dim, gate.width)


def _sizes(header: Header) -> dict[str, int]:
    geometry = header.json("geometry")
    for key in _SIZES:
        value = geometry.get(key)
        if type(value) is not int or not 1 <= value < 2**31:
            raise header.error(f"geometry.{key} is {value!r}, expected an int >= 1")
    return {key: geometry[key] for key in _SIZES}
