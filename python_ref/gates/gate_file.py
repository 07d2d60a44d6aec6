"""The gate file: one safetensors file, never pickle.

Metadata (strings): `format` = "kvp-gate", `format_version`, `name`, `model_fingerprint` and JSON
under `geometry` (everything needed to know every tensor's shape before reading one) and
`provenance`. Tensors: those of `gate_tensor_shapes`, all of one float dtype; 16 bits are enough.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from python_ref.artifacts import replacing
from python_ref.gates.gate import RetentionGate, gate_tensor_shapes

FORMAT = "kvp-gate"
FORMAT_VERSION = 1

_SIZES = ("layers", "kv_heads", "model_dim", "width")
_DTYPES = {"F32", "F16", "BF16"}


def write(
    gate: RetentionGate, path: str | PathLike[str], *, dtype: torch.dtype = torch.float16
) -> None:
    """Writes `gate` to `path`, whole or not at all.

    Raises:
        ValueError: a weight is not finite in `dtype`.
    """
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "name": gate.name,
        "model_fingerprint": gate.model_fingerprint,
        "geometry": json.dumps({key: getattr(gate, key) for key in _SIZES}),
        "provenance": json.dumps(gate.provenance),
    }
    tensors = {
        name: getattr(gate, name.replace(".", "_")).detach().to("cpu", dtype).contiguous()
        for name in _shapes(gate)
    }
    for name, t in tensors.items():
        if not bool(torch.isfinite(t).all()):
            raise ValueError(f"gate: {name} holds values that are not finite in {dtype}")
    with replacing(Path(path)) as draft:
        # Not save_file, which makes files that only their owner may read.
        draft.write_bytes(save(tensors, metadata=metadata))


def read(path: str | PathLike[str], *, device: torch.device | str = "cpu") -> RetentionGate:
    """Reads a gate file; the gate's weights are fp32 and want no gradient.

    Everything the file says of itself is checked against its tensors' headers before any weight is
    read, so a file that lies about its sizes allocates nothing.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a gate file, a newer format, or contents that do not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"gate file {path} does not exist")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            sizes = _sizes(path, metadata)
            expected = gate_tensor_shapes(**sizes)
            _check_tensors(path, file, expected)
            tensors = {name: file.get_tensor(name).float() for name in expected}
    except SafetensorError as error:
        raise ValueError(f"gate file {path} is malformed or cut short: {error}") from error
    for name, t in tensors.items():
        if not bool(torch.isfinite(t).all()):
            raise ValueError(f"gate file {path}: tensor {name} holds NaN or infinity")
    provenance = _json(path, metadata, "provenance")
    width = sizes.pop("width")
    with torch.device("meta"):
        gate = RetentionGate(
            *sizes.values(),
            width=width,
            name=metadata.get("name", ""),
            model_fingerprint=metadata.get("model_fingerprint", ""),
            provenance=provenance,
        )
    state = {name.replace(".", "_"): t for name, t in tensors.items()}
    gate.load_state_dict(state, assign=True)
    return gate.requires_grad_(False)


def _shapes(gate: RetentionGate) -> dict[str, tuple[int, ...]]:
    return gate_tensor_shapes(gate.layers, gate.kv_heads, gate.model_dim, gate.width)


def _sizes(path: Path, metadata: dict[str, str]) -> dict[str, int]:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"gate file {path}: format is {metadata.get('format')!r}, expected {FORMAT!r}"
        )
    version = metadata.get("format_version")
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"gate file {path}: format_version is {version!r}, this kvp-ext reads "
            f"{FORMAT_VERSION}; a newer one needs a newer kvp-ext"
        )
    geometry = _json(path, metadata, "geometry")
    for key in _SIZES:
        value = geometry.get(key)
        if type(value) is not int or not 1 <= value < 2**31:
            raise ValueError(f"gate file {path}: geometry.{key} is {value!r}, expected an int >= 1")
    return {key: geometry[key] for key in _SIZES}


def _json(path: Path, metadata: dict[str, str], key: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata[key])
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"gate file {path}: metadata {key!r} is missing or not JSON") from error
    if not isinstance(value, dict):
        raise ValueError(f"gate file {path}: metadata {key!r} is not a JSON object")
    return value


def _check_tensors(path: Path, file: Any, expected: dict[str, tuple[int, ...]]) -> None:
    names = set(file.keys())
    missing, unknown = sorted(set(expected) - names), sorted(names - set(expected))
    if missing or unknown:
        raise ValueError(
            f"gate file {path}: missing tensors {missing}, unexpected tensors {unknown}"
        )
    for name, shape in expected.items():
        header = file.get_slice(name)
        if header.get_shape() != list(shape) or header.get_dtype() not in _DTYPES:
            raise ValueError(
                f"gate file {path}: tensor {name} is {header.get_dtype()} {header.get_shape()}, "
                f"expected F32, F16 or BF16 {list(shape)} by the file's geometry"
            )
