"""The hidden states that attention blocks of a running model get, behind their input norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def attention_modules(model: nn.Module) -> list[Any]:
    """The attention modules of a transformers decoder, by layer.

    They are the innermost modules that know their layer, and they alone are given the cache.

    Raises:
        ValueError: not one for each layer.
    """
    knowing: list[Any] = [module for module in model.modules() if hasattr(module, "layer_idx")]
    innermost = [
        module
        for module in knowing
        if not any(hasattr(inner, "layer_idx") for inner in module.modules() if inner is not module)
    ]
    innermost.sort(key=lambda module: module.layer_idx)
    if not innermost or [m.layer_idx for m in innermost] != list(range(len(innermost))):
        raise ValueError(
            f"model: {type(model).__name__} has modules with layer_idx "
            f"{[m.layer_idx for m in innermost]}, expected one attention module for each layer"
        )
    return innermost


@contextmanager
def hidden_states(model: nn.Module, keep: Callable[[int, Tensor], None]) -> Iterator[None]:
    """While the model runs, every attention block's input goes to `keep(layer, hidden)`.

    Args:
        model: a transformers decoder.
        keep: gets the layer's index and hidden [B, T, model_dim] of the new tokens, which is the
            model's own tensor, not a copy.

    Raises:
        ValueError: the model has no attention modules that know their layer.
    """

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(module.layer_idx, kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])

    with ExitStack() as hooks:
        for module in attention_modules(model):
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            hooks.callback(handle.remove)
        yield


@torch.no_grad()
def run(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Run a model over whole sequences without a cache.

    Args:
        model: a transformers decoder with a language model's head.
        ids: [B, T] without padding.

    Returns:
        hidden [L, B, T, model_dim] of the attention blocks, and the last hidden states
        [B, T, model_dim], which the model's head makes logits of.
    """
    kept: dict[int, Tensor] = {}
    with hidden_states(model, kept.__setitem__):
        last = model.base_model(ids.to(model.device), use_cache=False).last_hidden_state
    return torch.stack([kept[layer] for layer in sorted(kept)]), last
