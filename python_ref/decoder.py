"""Running a frozen transformers decoder: a prefill, and branches on a cache that may be evicted.

Works with transformers 4.56 to 5.x. Every branch starts from the same cache, which is not
modified: continuing copies it. What the layers attend to can be watched while the model runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from python_ref.attention_call import AttentionCall
from python_ref.attention_interface import Plain, replaced_attention

# Called by every attention layer with its index, query [B, Hq, Tq, D] and key [B, H, Tk, D], both
# after RoPE; the queries belong to the last Tq keys.
Observer = Callable[[int, Tensor, Tensor], None]
# Called by every attention layer with all that decides its weights.
Watcher = Callable[[AttentionCall], None]


@torch.no_grad()
def prefill(
    model: PreTrainedModel,
    ids: Sequence[int],
    *,
    observer: Observer | None = None,
    watcher: Watcher | None = None,
) -> tuple[Tensor, Tensor]:
    """Keys after RoPE and raw values of a context, each [L, H, T, D]."""
    cache: Any = DynamicCache()
    tokens = torch.tensor([list(ids)], device=model.device)
    # The decoder alone: logits over the vocabulary would cost a fifth more and are not needed.
    network = model.base_model
    with watched(model, observer, watcher):
        network(tokens, **{_cache_argument(network): cache}, use_cache=True)
    k, v = (torch.cat(tensors) for tensors in zip(*cache_layers(cache), strict=True))
    return k, v


@torch.no_grad()
def continue_from(
    model: PreTrainedModel,
    k: Tensor,
    v: Tensor,
    position: int,
    branches: Sequence[Sequence[int]],
    *,
    logits: bool = True,
    observer: Observer | None = None,
    watcher: Watcher | None = None,
) -> Tensor | None:
    """Runs branches, each directly after a cache k [L, H, T, Dk], v [L, H, T, Dv].

    `position` is the logical position of the first branch token: the length of the context
    before any eviction. Returns logits [branch, longest branch, vocabulary] if wanted; rows past
    the end of a branch are meaningless, in the logits and in what is observed.
    """
    count, longest = len(branches), max(map(len, branches))
    tokens = torch.zeros(count, longest, dtype=torch.long)
    for row, ids in zip(tokens, branches, strict=True):
        row[: len(ids)] = torch.tensor(list(ids))
    cache = _cache_of(model, k, v, count)
    network = model if logits else model.base_model
    with watched(model, observer, watcher):
        output = forward(network, tokens, cache, position)
    return output.logits if logits else None


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    k: Tensor,
    v: Tensor,
    position: int,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    stop: Sequence[int] = (),
) -> list[list[int]]:
    """What the model says after each prompt, each prompt directly after a cache.

    Args:
        k, v, position: as `continue_from` takes them.
        prompts: token ids, at least one each. Prompts of one length run as one batch.
        tokens: at most so many new tokens.
        temperature: of the sampling; 0 is greedy.
        seed: of the sampling. Every prompt draws from a stream of its own, so what it gets does
            not depend on the others.
        stop: tokens that end a text; the first one is part of it.

    Returns:
        The new tokens of each prompt.
    """
    if tokens < 1:
        raise ValueError(f"tokens: got {tokens}, expected at least 1")
    if not all(len(prompt) for prompt in prompts):
        raise ValueError("prompts: one is empty, expected at least one token in each")
    said: list[list[int]] = [[] for _ in prompts]
    for length in sorted({len(prompt) for prompt in prompts}):
        rows = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        streams = [torch.Generator().manual_seed(seed + i) for i in rows]
        cache = _cache_of(model, k, v, len(rows))
        step, place = torch.tensor([list(prompts[i]) for i in rows]), position
        for _ in range(tokens):
            logits = forward(model, step, cache, place, 1).logits[:, -1].float().cpu()
            chosen = [
                _sample(row, temperature, stream)
                for row, stream in zip(logits, streams, strict=True)
            ]
            for i, token in zip(rows, chosen, strict=True):
                if not said[i] or said[i][-1] not in stop:
                    said[i].append(token)
            if all(said[i][-1] in stop for i in rows):
                break
            step, place = torch.tensor(chosen)[:, None], place + step.shape[1]
    return said


def _sample(logits: Tensor, temperature: float, stream: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    weights = (logits / temperature).softmax(dim=-1)
    return int(torch.multinomial(weights, 1, generator=stream))


def forward(
    network: Any, tokens: Tensor, cache: Any, position: int, last: int | None = None
) -> Any:
    """One forward of tokens [B, q] whose first column is at `position`.

    With `last` only the logits of so many last tokens are needed; a model that can leave the others
    out does so, which saves time where the vocabulary is large.
    """
    positions = torch.arange(position, position + tokens.shape[1], device=network.device)
    options: dict[str, Any] = {}
    if last is not None and "logits_to_keep" in inspect.signature(network.forward).parameters:
        options["logits_to_keep"] = last
    return network(
        tokens.to(network.device),
        position_ids=positions[None].expand(tokens.shape[0], -1),
        use_cache=True,
        **{_cache_argument(network): cache},
        **options,
    )


def _cache_of(model: PreTrainedModel, k: Tensor, v: Tensor, count: int) -> Any:
    """A cache of `count` rows, each a copy of k, v [L, H, T, D]."""
    cache: Any = DynamicCache()
    for layer in range(k.shape[0]):
        one = [x[layer].to(model.device, model.dtype) for x in (k, v)]
        cache.update(*(x.expand(count, *x.shape) for x in one), layer)
    return cache


def _cache_argument(network: torch.nn.Module) -> str:
    """transformers 5.24 renamed `past_key_values` to `cache`."""
    arguments = inspect.signature(network.forward).parameters
    return "cache" if "cache" in arguments else "past_key_values"


def cache_layers(cache: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys and values [B, H, T, D] of every layer of a DynamicCache."""
    yield from ((layer.keys, layer.values) for layer in cache.layers)


@contextmanager
def watched(
    model: PreTrainedModel, observer: Observer | None, watcher: Watcher | None
) -> Iterator[None]:
    """The model's layers call `observer` and `watcher` while they run."""
    if observer is None and watcher is None:
        yield
        return

    def attend(call: AttentionCall, value: Tensor, plain: Plain) -> Tensor:
        if observer is not None:
            observer(call.layer, call.query, call.key)
        if watcher is not None:
            watcher(call)
        return plain(call.mask)

    with replaced_attention(model, attend):
        yield
