"""A model's attention, replaced for a while: the one that is registered with transformers.

Works with transformers 4.56 to 5.x and every model that goes through its attention interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from python_ref.attention_call import AttentionCall

# What the model's own attention gives, [B, Tq, H G, Dv], under a mask as `AttentionCall.mask`.
Plain = Callable[[Tensor | None], Tensor]
# Replaces an attention layer: from the call, the values [B, H, Tk, Dv] and the model's own.
Attend = Callable[[AttentionCall, Tensor, Plain], Tensor]

_ATTENTION = "kvp_replaced_sdpa"
_attend: Attend | None = None


@contextmanager
def replaced_attention(model: Any, attend: Attend) -> Iterator[None]:
    """Within the block every attention layer of the model is `attend`.

    Blocks may be nested; the innermost counts. The model is as before when a block ends, however
    it ends.
    """
    global _attend
    before = model.config._attn_implementation, _attend
    model.config._attn_implementation, _attend = _ATTENTION, attend
    try:
        yield
    finally:
        model.config._attn_implementation, _attend = before


def _replaced(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if kwargs.get("position_bias") is not None:
        raise ValueError(
            f"{type(module).__name__}: its attention adds a position bias to the logits, "
            "which is not supported"
        )
    if _attend is None:
        raise RuntimeError(
            f"the attention {_ATTENTION!r} is for forwards within `replaced_attention` only"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(module.layer_idx, query, key, mask, scale, softcap, s_aux)

    def plain(own: Tensor | None) -> Tensor:
        if softcap is not None or s_aux is not None:  # which sdpa does not know
            return replace(call, mask=own).output(value)
        if own is not None and own.shape[1] > 1:  # a mask for each KV head
            own = own.repeat_interleave(call.groups, dim=1)
        output: Tensor = sdpa_attention_forward(
            module, query, key, value, own, scaling=scaling, **kwargs
        )[0]
        return output

    return _attend(call, value, plain), None


AttentionInterface.register(_ATTENTION, _replaced)
AttentionMaskInterface.register(_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
