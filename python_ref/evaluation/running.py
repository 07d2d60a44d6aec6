"""Running a model on from a cache: a longer prefill, the likelihood of answers, generated text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from python_ref.data.document import Branch, Document
from python_ref.decoder import Watcher, cache_layers, forward, watched
from python_ref.evaluation.metrics import Answer, score_answer
from python_ref.evaluation.ragged import ragged

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Bytes of the caches and logits that run together: a few tokens cost little more for many rows
# than for one, since a forward waits for the weights, but every row holds a cache.
BATCH_BYTES = 1 << 30


@torch.no_grad()
def extend(
    model: PreTrainedModel, k: Tensor, v: Tensor, ids: Sequence[int], watcher: Watcher
) -> tuple[Tensor, Tensor]:
    """The cache k, v [L, H, n, D] of n tokens, and of those in `ids` after them."""
    cache = _cache_of(model, k[:, None], v[:, None])
    with watched(model, None, watcher):
        forward(model.base_model, torch.tensor([list(ids)]), cache, k.shape[2])
    longer_k, longer_v = (torch.cat(tensors) for tensors in zip(*cache_layers(cache), strict=True))
    return longer_k, longer_v


def answers(
    model: PreTrainedModel,
    k: Tensor,
    v: Tensor,
    position: int,
    branch: Branch,
    lengths: Tensor | None = None,
) -> list[Answer]:
    """How the model does on a branch, directly after each of R caches.

    Args:
        k, v: [L, R, H, T, D].
        position: logical position of the branch's first token: the length of the context before
            any eviction.
        branch: one of the document's.
        lengths: integers [L, R, H], how many of the T slots each row holds, padding after them; by
            default all.
    """
    stop = len(branch.ids)
    # The logits of one token predict the next. A continuation has no token before its first.
    start = max(1, stop - branch.answer)
    target = torch.tensor(branch.ids[start:stop])
    result = []
    for some_k, some_v, some in _batches(model, k, v, stop, lengths):
        cache = _cache_of(model, some_k, some_v)
        ids = torch.tensor([branch.ids]).expand(some_k.shape[1], -1)
        with torch.no_grad(), ragged(model, some, some_k.shape[3]):
            predicting = stop - start + 1
            logits = forward(model, ids, cache, position, predicting).logits[:, -predicting:-1]
        result += [score_answer(row.cpu(), target) for row in logits]
    return result


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    k: Tensor,
    v: Tensor,
    position: int,
    question: Sequence[int],
    tokens: int,
    stop: Sequence[int] = (),
    lengths: Tensor | None = None,
) -> list[list[int]]:
    """What greedy decoding says after a question, on each of R caches.

    Args:
        k, v, position, lengths: as `answers` takes them.
        question: at least one token.
        tokens: at most so many new tokens.
        stop: tokens that end a text and are not part of it.

    Returns:
        The new tokens after each cache.
    """
    said: list[list[int]] = []
    for some_k, some_v, some in _batches(model, k, v, len(question), lengths):
        with ragged(model, some, some_k.shape[3]):
            said += _generate(model, some_k, some_v, position, question, tokens, stop)
    return said


def _generate(
    model: PreTrainedModel,
    k: Tensor,
    v: Tensor,
    position: int,
    question: Sequence[int],
    tokens: int,
    stop: Sequence[int],
) -> list[list[int]]:
    cache = _cache_of(model, k, v)
    step = torch.tensor([list(question)]).expand(k.shape[1], -1)
    said: list[list[int]] = [[] for _ in range(k.shape[1])]
    ended = [False] * len(said)
    for _ in range(tokens):
        logits = forward(model, step, cache, position, 1).logits[:, -1]
        position += step.shape[1]
        step = logits.argmax(dim=-1, keepdim=True).cpu()
        for row, token in enumerate(step[:, 0].tolist()):
            ended[row] = ended[row] or token in stop
            if not ended[row]:
                said[row].append(token)
        if all(ended):
            break
    return said


def _batches(
    model: PreTrainedModel, k: Tensor, v: Tensor, tokens: int, lengths: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """As many of the caches at a time as fit, with the logits of so many tokens after each.

    They are as wide as their own longest row, and have lengths if a row is shorter.
    """
    embeddings: Any = model.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    size = torch.finfo(model.dtype).bits // 8
    row = size * (k[:, 0].numel() + v[:, 0].numel() + tokens * vocabulary)
    rows = max(1, BATCH_BYTES // row)
    for first in range(0, k.shape[1], rows):
        own = slice(first, first + rows)
        if lengths is None:
            yield k[:, own], v[:, own], None
            continue
        held = lengths[:, own]
        slots = int(held.max())
        padded = bool((held < slots).any())
        yield k[:, own, :, :slots], v[:, own, :, :slots], held if padded else None


def _cache_of(model: PreTrainedModel, k: Tensor, v: Tensor) -> Any:
    """A cache of k, v [L, R, H, T, D]."""
    cache: Any = DynamicCache()
    for layer, tensors in enumerate(zip(k, v, strict=True)):
        cache.update(*(x.to(model.device, model.dtype) for x in tensors), layer)
    return cache


def end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """The tokens with which the model ends a text."""
    config: Any = model.generation_config
    stop = config.eos_token_id if config is not None else None
    return () if stop is None else (stop,) if isinstance(stop, int) else tuple(stop)


def check_attends_to_everything(model: PreTrainedModel, document: Document) -> None:
    """Refuses a document that is longer than a sliding window of the model.

    What a window hides depends on how many entries lie between, which eviction changes.

    Raises:
        ValueError: naming the window and the document's length.
    """
    config: Any = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is not None and "sliding_attention" not in kinds:
        window = None
    if kinds is not None and "chunked_attention" in kinds:
        window = config.attention_chunk_size
    length = len(document.context) + max(len(branch.ids) for branch in document.branches)
    if window is not None and length > window:
        raise ValueError(
            f"document of kind {document.kind!r}: has {length} tokens, expected at most {window}, "
            f"because {type(model).__name__} has layers that attend to only so many"
        )
