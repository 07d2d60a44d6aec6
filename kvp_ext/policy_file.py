"""The policy file: one safetensors file, never pickle.

Metadata (strings): `format` = "kvp-policy", `format_version`, and JSON under `geometry`
(everything needed to know every tensor's shape before reading one), `pins` and `provenance`.
Tensors, all fp32: the folded weights by name, `[layers, kv_heads, …]`, and `positions`,
`[position_rows, position_dim]` or one such table per (layer, KV head). The file is independent
of the packed layout that kernels read, so it outlives it.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

from python_ref.fold import FoldedPolicy, folded_tensor_shapes
from python_ref.tensor_file import Header, Kind

if TYPE_CHECKING:
    from .policy import Policy

KIND = Kind("policy file", format="kvp-policy", version=1, dtypes=("F32",))

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
    tensors = dict(folded.tensors) | {"positions": folded.positions}
    KIND.write(
        path,
        {name: t.detach().float().cpu().contiguous() for name, t in tensors.items()},
        {
            "name": policy.name,
            "geometry": geometry,
            "pins": {"sinks": policy.sinks, "recent": policy.recent},
            "provenance": policy.provenance,
        },
    )


def read(path: str | PathLike[str], *, device: torch.device | str = "cpu") -> Policy:
    """Reads a policy file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a policy file, a newer format, or contents that do not fit.
    """
    from .policy import Policy

    header, tensors = KIND.read(path, lambda h: _expected_shapes(_geometry(h)), device=device)
    geometry, pins = _geometry(header), header.json("pins")
    for key in ("sinks", "recent"):
        value = pins.get(key)
        if type(value) is not int or value < 0:
            raise header.error(f"pins.{key} is {value!r}, expected an int >= 0")
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
        name=header.text("name"),
        provenance=header.json("provenance"),
    )


def _geometry(header: Header) -> dict[str, Any]:
    geometry = header.json("geometry")
    for name in _INT_FIELDS:
        value = geometry.get(name)
        least = 0 if name == "position_dim" else 1
        if type(value) is not int or not least <= value < 2**31:
            raise header.error(f"geometry.{name} is {value!r}, expected an int >= {least}")
    for name in _BOOL_FIELDS:
        if type(geometry.get(name)) is not bool:
            raise header.error(f"geometry.{name} is {geometry.get(name)!r}, expected a bool")
    eps = geometry.get("norm_eps")
    if type(eps) is not float or not 0 <= eps < 1:
        raise header.error(f"geometry.norm_eps is {eps!r}, expected 0 <= eps < 1")
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
