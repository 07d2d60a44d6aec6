"""The policy file: one safetensors file, never pickle.

Metadata (strings): `format` = "kvp-policy", `format_version`, and JSON under `geometry`
(everything needed to know every tensor's shape before reading one), `pins` and `provenance`.
Tensors, all fp32: the folded weights by name, `[layers, kv_heads, …]`, and `positions`,
`[position_rows, position_dim]` or one such table per (layer, KV head). The file is independent
of the packed layout that kernels read, so it outlives it.
"""

from __future__ import annotations

import json
import os
import tempfile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from python_ref.fold import FoldedPolicy, folded_tensor_shapes

if TYPE_CHECKING:
    from .policy import Policy

FORMAT = "kvp-policy"
FORMAT_VERSION = 1

_INT_FIELDS = (
    "layers",
    "kv_heads",
    "head_dim_k",
    "head_dim_v",
    "hidden",
    "position_dim",
    "position_rows",
)
_BOOL_FIELDS = ("gains", "norms", "shared_positions")


def write(policy: Policy, path: str | PathLike[str]) -> None:
    """Writes `policy` to `path`, whole or not at all."""
    folded = policy.folded
    geometry: dict[str, Any] = {name: getattr(folded, name) for name in _INT_FIELDS}
    geometry |= {
        "gains": folded.gains,
        "norms": folded.norms,
        "shared_positions": folded.shared_positions,
        "norm_eps": folded.norm_eps,
    }
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "name": policy.name,
        "geometry": json.dumps(geometry),
        "pins": json.dumps({"sinks": policy.sinks, "recent": policy.recent}),
        "provenance": json.dumps(policy.provenance),
    }
    tensors = dict(folded.tensors) | {"positions": folded.positions}
    ready = {name: t.detach().float().cpu().contiguous() for name, t in tensors.items()}
    path = Path(path)
    # A crash while writing must not leave a truncated policy under the final name.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        save_file(ready, temporary, metadata=metadata)
        mode = os.umask(0)
        os.umask(mode)
        os.chmod(temporary, 0o666 & ~mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: str | PathLike[str], *, device: torch.device | str = "cpu") -> Policy:
    """Reads a policy file.

    Everything the file says of itself is checked against its tensors' headers before any
    weight is read, so a file that lies about its sizes allocates nothing.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a policy file, a newer format, or contents that do not fit.
    """
    from .policy import Policy

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"policy file {path} does not exist")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            geometry = _geometry(path, metadata)
            expected = _expected_shapes(geometry)
            _check_tensors(path, file, expected)
            tensors = {name: file.get_tensor(name) for name in expected}
    except SafetensorError as error:
        raise ValueError(f"policy file {path} is malformed or cut short: {error}") from error
    for name, t in tensors.items():
        if not bool(torch.isfinite(t).all()):
            raise ValueError(f"policy file {path}: tensor {name} holds NaN or infinity")
    pins = _json(path, metadata, "pins")
    for key in ("sinks", "recent"):
        value = pins.get(key)
        if type(value) is not int or value < 0:
            raise ValueError(f"policy file {path}: pins.{key} is {value!r}, expected an int >= 0")
    positions = tensors.pop("positions")
    folded = FoldedPolicy(
        **{name: geometry[name] for name in (*_INT_FIELDS, "gains", "norms", "norm_eps")},
        tensors=tensors,
        positions=positions,
    )
    return Policy(
        folded,
        sinks=pins["sinks"],
        recent=pins["recent"],
        name=metadata.get("name", ""),
        provenance=_json(path, metadata, "provenance"),
    )


def _json(path: Path, metadata: dict[str, str], key: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata[key])
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"policy file {path}: metadata {key!r} is missing or not JSON") from error
    if not isinstance(value, dict):
        raise ValueError(f"policy file {path}: metadata {key!r} is not a JSON object")
    return value


def _geometry(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"policy file {path}: format is {metadata.get('format')!r}, expected {FORMAT!r}"
        )
    version = metadata.get("format_version")
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"policy file {path}: format_version is {version!r}, this kvp-ext reads "
            f"{FORMAT_VERSION}; a newer one needs a newer kvp-ext"
        )
    geometry = _json(path, metadata, "geometry")
    for name in _INT_FIELDS:
        value = geometry.get(name)
        least = 0 if name == "position_dim" else 1
        if type(value) is not int or not least <= value < 2**31:
            raise ValueError(
                f"policy file {path}: geometry.{name} is {value!r}, expected an int >= {least}"
            )
    for name in _BOOL_FIELDS:
        if type(geometry.get(name)) is not bool:
            raise ValueError(
                f"policy file {path}: geometry.{name} is {geometry.get(name)!r}, expected a bool"
            )
    eps = geometry.get("norm_eps")
    if type(eps) is not float or not 0 <= eps < 1:
        raise ValueError(f"policy file {path}: geometry.norm_eps is {eps!r}, expected 0 <= eps < 1")
    return geometry


def _expected_shapes(geometry: dict[str, Any]) -> dict[str, list[int]]:
    lead = [geometry["layers"], geometry["kv_heads"]]
    per_head = folded_tensor_shapes(
        head_dim_k=geometry["head_dim_k"],
        head_dim_v=geometry["head_dim_v"],
        hidden=geometry["hidden"],
        position_dim=geometry["position_dim"],
        gains=geometry["gains"],
        norms=geometry["norms"],
    )
    shapes = {name: lead + list(shape) for name, shape in per_head.items()}
    table = [geometry["position_rows"], geometry["position_dim"]]
    shapes["positions"] = table if geometry["shared_positions"] else lead + table
    return shapes


def _check_tensors(path: Path, file: Any, expected: dict[str, list[int]]) -> None:
    names = set(file.keys())
    missing, unknown = sorted(set(expected) - names), sorted(names - set(expected))
    if missing or unknown:
        raise ValueError(
            f"policy file {path}: missing tensors {missing}, unexpected tensors {unknown}"
        )
    for name, shape in expected.items():
        header = file.get_slice(name)
        if header.get_shape() != shape or header.get_dtype() != "F32":
            raise ValueError(
                f"policy file {path}: tensor {name} is {header.get_dtype()} "
                f"{header.get_shape()}, expected F32 {shape} by the file's geometry"
            )
