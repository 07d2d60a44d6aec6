"""What a transformers model is, as far as its KV cache is concerned, and whether it can be traced.

A fingerprint tells models apart whatever they are called, so that what was computed by one model
is never taken for another's.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from python_ref.attention_call import AttentionCall

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Part of a configuration that says nothing about what the model computes.
_VOLATILE = {"transformers_version", "torch_dtype", "dtype", "architectures", "use_cache"}
_ATTENTION_LAYERS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True)
class ModelInfo:
    """A model and the geometry of its cache.

    Attributes:
        name: what it was loaded as.
        fingerprint: of its configuration and some of its weights, 16 hexadecimal digits.
        dtype: that it computes in, such as "float32".
        layers, query_heads, kv_heads: heads are per layer.
        head_dim_k, head_dim_v: of one key and one value.
    """

    name: str
    fingerprint: str
    dtype: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int


def inspect_model(model: PreTrainedModel, name: str | None = None) -> ModelInfo:
    """Checks that `model` can be traced, by its configuration and a forward of two tokens.

    Raises:
        ValueError: it is not a decoder-only model with a KV cache of one shape in every layer
            whose layers go through the attention interface of transformers; says what is missing.
    """
    name = name or model.config._name_or_path or type(model).__name__
    who = f"{name} ({type(model).__name__})"
    config: Any = model.config.get_text_config(decoder=True)
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{who} is an encoder-decoder, expected a decoder-only model")
    for field in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        if not isinstance(getattr(config, field, None), int):
            raise ValueError(
                f"{who} has no {field} in its configuration, which says how query heads share "
                "KV heads"
            )
    kinds = {
        str(kind)
        for field in ("layer_types", "layers_block_type")
        for kind in (getattr(config, field, None) or ())
    }
    if other := kinds - _ATTENTION_LAYERS:
        raise ValueError(
            f"{who} has layers without a KV cache ({', '.join(sorted(other))}), expected "
            "attention in every layer"
        )
    calls, k, v = _probe(model, who)
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    if sorted(call.layer for call in calls) != list(range(layers)):
        seen = len({call.layer for call in calls})
        raise ValueError(
            f"{who}: {seen} of its {layers} layers went through the attention interface of "
            "transformers, expected all of them, once each"
        )
    expected = (layers, heads, 2)
    if k.shape[:3] != expected or v.shape[:3] != expected:
        raise ValueError(
            f"{who} caches keys of shape {list(k.shape)} and values of shape {list(v.shape)} "
            f"for 2 tokens, expected {list(expected)} and the head dimension"
        )
    return ModelInfo(
        name=name,
        fingerprint=_fingerprint(model, config),
        dtype=str(k.dtype).removeprefix("torch."),
        layers=layers,
        query_heads=calls[0].query.shape[1],
        kv_heads=heads,
        head_dim_k=k.shape[-1],
        head_dim_v=v.shape[-1],
    )


def _probe(
    model: PreTrainedModel, who: str
) -> tuple[list[AttentionCall], torch.Tensor, torch.Tensor]:
    from python_ref.decoder import prefill  # transformers is slow to import

    calls: list[AttentionCall] = []
    try:
        k, v = prefill(model, [0, 1], watcher=calls.append)
    # Models without a cache of keys and values fail here in as many ways as there are models.
    except Exception as error:
        raise ValueError(
            f"{who}: a forward with a cache of keys and values failed, expected attention with "
            f"such a cache, of one shape, in every layer ({type(error).__name__}: {error})"
        ) from error
    return calls, k, v


def _fingerprint(model: PreTrainedModel, config: Any) -> str:
    fields = {k: v for k, v in config.to_dict().items() if k not in _VOLATILE and k[0] != "_"}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode())
    parameters = sorted(model.named_parameters(), key=lambda item: item[0])
    for name, parameter in parameters[:: max(1, len(parameters) // 16)]:
        flat = parameter.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // 256)].float().cpu()
        digest.update(f"{name}{list(parameter.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
