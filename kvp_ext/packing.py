"""Packs folded weights into the layout that kernels read, and back.

The layout itself (order of the tensors, panels, offsets) is defined by libkvp alone, in
`csrc/host/packed_layout.h`; this module hands it pointers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from python_ref.fold import FoldedPolicy

from . import _C


def shape_of(folded: FoldedPolicy) -> _C.PolicyShape:
    """The geometry of a folded policy as libkvp's `kvp_policy_shape`."""
    return _C.PolicyShape(
        layers=folded.layers,
        kv_heads=folded.kv_heads,
        head_dim_k=folded.head_dim_k,
        head_dim_v=folded.head_dim_v,
        hidden=folded.hidden,
        position_dim=folded.position_dim,
        position_rows=folded.position_rows,
        flags=(_C.POLICY_GAINS if folded.gains else 0)
        | (_C.POLICY_NORMS if folded.norms else 0)
        | (_C.POLICY_SHARED_POSITIONS if folded.shared_positions else 0),
        norm_eps=folded.norm_eps,
    )


def pack(folded: FoldedPolicy) -> Tensor:
    """fp32 `[layers, kv_heads, block]` on the policy's device, in packed layout version
    `_C.PACKED_LAYOUT_VERSION`."""
    shape = shape_of(folded)
    names = [name for name, _, _ in _C.policy_tensors(shape)]
    tensors = [folded.tensors[name].float().cpu().contiguous() for name in names]
    block = _C.policy_block_floats(shape)
    packed = torch.empty(folded.layers, folded.kv_heads, block, dtype=torch.float32, device="cpu")
    for layer in range(folded.layers):
        for head in range(folded.kv_heads):
            pointers = [t[layer, head].data_ptr() for t in tensors]
            _C.policy_pack(shape, pointers, packed[layer, head].data_ptr())
    return packed.to(folded.positions.device)


def fragments(folded: FoldedPolicy, packed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Packed weights and position features as 16-bit fragments, uint8 on the policy's device.

    The layout is that of `csrc/host/fragment_layout.h`.
    """
    shape = shape_of(folded)
    code = _C.FLOAT16 if dtype == torch.float16 else _C.BFLOAT16
    block_bytes, row_bytes = _C.policy_fragment_bytes(shape)
    packed = packed.cpu()
    lead = packed.shape[:2]
    weights = torch.empty(*lead, block_bytes, dtype=torch.uint8, device="cpu")
    for layer in range(lead[0]):
        for head in range(lead[1]):
            block = packed[layer, head]
            _C.policy_fragments(shape, code, block.data_ptr(), weights[layer, head].data_ptr())
    features = folded.positions.float().cpu().contiguous()
    positions = torch.empty(*features.shape[:-1], row_bytes, dtype=torch.uint8, device="cpu")
    _C.policy_position_fragments(
        shape, code, features.data_ptr(), features.shape[:-1].numel(), positions.data_ptr()
    )
    device = folded.positions.device
    return weights.to(device), positions.to(device)


def unpack(shape: _C.PolicyShape, packed: Tensor) -> dict[str, Tensor]:
    """The exact inverse of `pack`: tensor name to fp32 `[layers, kv_heads, …]` on the CPU."""
    packed = packed.cpu().contiguous()
    expected = [shape.layers, shape.kv_heads, _C.policy_block_floats(shape)]
    if packed.dtype != torch.float32 or list(packed.shape) != expected:
        raise ValueError(
            f"packed is {packed.dtype} {list(packed.shape)}, expected torch.float32 {expected}"
        )
    lead = (shape.layers, shape.kv_heads)
    tensors = {
        name: torch.empty(*lead, rows, *([cols] if cols else []), dtype=torch.float32, device="cpu")
        for name, rows, cols in _C.policy_tensors(shape)
    }
    for layer in range(shape.layers):
        for head in range(shape.kv_heads):
            pointers = [t[layer, head].data_ptr() for t in tensors.values()]
            _C.policy_unpack(shape, packed[layer, head].data_ptr(), pointers)
    return tensors
