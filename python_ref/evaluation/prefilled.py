"""One prefill of a document, which all methods and budgets share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from python_ref.attention_call import AttentionCall
from python_ref.data.document import Document
from python_ref.decoder import prefill
from python_ref.evaluation.running import check_attends_to_everything, extend
from python_ref.gates.hidden import hidden_states
from python_ref.training.traces import branch_utility

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Needs:
    """What a prefill has to keep for the methods that will score it.

    Attributes:
        window: queries of so many last tokens; None for all.
        received: the attention that every entry received.
        hidden: the hidden states of every token.
    """

    window: int | None = 0
    received: bool = False
    hidden: bool = False


ALL_NEEDS = Needs(window=64, received=True)


@dataclass(frozen=True)
class Prefilled:
    """A document and what its prefill left, with n the length of the context.

    Attributes:
        document: as it was read.
        k, v: [L, H, n, D] keys after RoPE and raw values.
        q: [L, H G, min(n, window), D] queries after RoPE of the last tokens, scaled so that
            q . k / sqrt(D) are the model's logits.
        hidden: [L, n, model_dim] what the attention blocks got; no tokens unless asked for.
        model: that was run; methods may read its weights.
        received: [L, H, n] fp32, the attention that each entry received from all queries of the
            prefill, mean over the group's query heads; zeros unless asked for.
        utility: [L, H, n] fp32, what the branches will attend to; only an oracle may look.
    """

    document: Document
    k: Tensor
    v: Tensor
    q: Tensor
    received: Tensor
    utility: Tensor
    hidden: Tensor
    model: PreTrainedModel


class _Watch:
    """Collects queries and received attention, layer by layer, while a model runs."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.queries: list[Tensor] = []
        self.received: list[Tensor] = []
        self.hidden: list[Tensor] = []

    @contextmanager
    def of(self, model: PreTrainedModel) -> Iterator[_Watch]:
        """While the model runs; the watch itself goes to it as a watcher."""
        if not self.needs.hidden:
            yield self
            return
        with hidden_states(model, lambda _, hidden: self.hidden.append(hidden[0])):
            yield self

    def __call__(self, call: AttentionCall) -> None:
        query = last(call.query[0], self.needs.window)
        self.queries.append(query * (call.scale * query.shape[-1] ** 0.5))
        heads, keys = call.key.shape[1:3]
        total = torch.zeros(heads, keys, device=call.key.device)
        if self.needs.received:
            for _, logits in call.logit_blocks():
                weights = call.weights(logits)[0].mean(dim=1)
                total[:, : weights.shape[-1]] += weights.sum(dim=1).float()
        self.received.append(total)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, received and hidden of all layers."""
        empty = torch.empty(len(self.queries), 0, 0)
        hidden = torch.stack(self.hidden) if self.hidden else empty
        return torch.stack(self.queries), torch.stack(self.received), hidden


def prefill_document(
    model: PreTrainedModel, document: Document, needs: Needs = ALL_NEEDS
) -> Prefilled:
    """Runs the context once, and the branches once for their utility.

    Raises:
        ValueError: the model has a sliding window that is shorter than the document.
    """
    check_attends_to_everything(model, document)
    with _Watch(needs).of(model) as watch:
        k, v = prefill(model, document.context, watcher=watch)
    q, received, hidden = watch.result()
    utility = branch_utility(model, k, v, document.branches)
    return Prefilled(document, k, v, q, received, utility, hidden, model)


def prefill_further(
    model: PreTrainedModel, item: Prefilled, document: Document, needs: Needs = ALL_NEEDS
) -> Prefilled:
    """As `prefill_document`, but goes on from `item` if the context begins with that of `item`."""
    n = len(item.document.context)
    if document.context[:n] != item.document.context:
        return prefill_document(model, document, needs)
    check_attends_to_everything(model, document)
    k, v, q, received, hidden = item.k, item.v, item.q, item.received, item.hidden
    if rest := document.context[n:]:
        with _Watch(needs).of(model) as watch:
            k, v = extend(model, k, v, rest, watch)
        new_q, total, new_hidden = watch.result()
        hidden = torch.cat([hidden, new_hidden], dim=1)
        q = last(torch.cat([q, new_q], dim=2), needs.window)
        total[..., :n] += received
        received = total
    utility = branch_utility(model, k, v, document.branches)
    return Prefilled(document, k, v, q, received, utility, hidden, model)


def last(x: Tensor, count: int | None) -> Tensor:
    """The last `count` entries of x [..., T, D], or all of them if there are fewer, or for None."""
    return x if count is None else x[..., max(0, x.shape[-2] - count) :, :]
