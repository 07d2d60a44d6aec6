"""What eviction costs a real model: answers and likelihood after part of the cache is gone.

One prefill per document serves all methods and budgets. Entries are removed, never masked; what
follows runs on the smaller cache at the logical positions it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from python_ref.agents import Agent
from python_ref.data.documents import Branch, Document
from python_ref.decoder import continue_from, prefill
from python_ref.methods import methods
from python_ref.selection import select
from python_ref.training.traces import branch_utility
from python_ref.utility import cost_of_scores, optimal_cost

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Answer:
    """How a model does on one branch, teacher-forced.

    Attributes:
        correct: greedy decoding would have given the answer, token for token.
        nll: mean negative log-likelihood of the answer's tokens, in nats.
        tokens: in the answer.
    """

    correct: bool
    nll: float
    tokens: int


@dataclass(frozen=True)
class Prefilled:
    """A document and what its prefill left, with n the length of the context.

    Attributes:
        k, v: [L, H, n, D].
        q: [L, Hq, min(n, 64), D], the queries of the last tokens.
        utility: [L, H, n], what the branches will attend to; only an oracle may look.
    """

    document: Document
    k: Tensor
    v: Tensor
    q: Tensor
    utility: Tensor


# Scores [L, H, n] of a context's entries, higher = keep.
Scorer = Callable[[Prefilled], Tensor]


def by_method(name: str, **options: Any) -> Scorer:
    """A method of `python_ref.methods`; "oracle" is the true utility of all branches."""
    if name == "oracle":
        return lambda item: item.utility
    method = methods()[name]
    return lambda item: method(k=item.k, v=item.v, q=item.q, **options)


def by_agent(agent: Agent) -> Scorer:
    """A trained policy."""

    @torch.no_grad()
    def score(item: Prefilled) -> Tensor:
        pos = torch.arange(item.k.shape[2])
        scores: Tensor = agent(item.k.unsqueeze(1), item.v.unsqueeze(1), pos)
        return scores.squeeze(1)

    return score


def prefill_document(model: PreTrainedModel, document: Document) -> Prefilled:
    """Runs the context, and the branches once for the oracle."""
    queries: dict[int, Tensor] = {}

    def observe(layer: int, query: Tensor, key: Tensor) -> None:
        queries[layer] = query[0, :, -64:].clone()

    k, v = prefill(model, document.context, observer=observe)
    q = torch.stack([queries[layer] for layer in range(len(k))])
    return Prefilled(document, k, v, q, branch_utility(model, k, v, document.branches))


def evict(
    k: Tensor, v: Tensor, scores: Tensor, budget: int, sinks: int = 4, recent: int = 16
) -> tuple[Tensor, Tensor]:
    """The `budget` best entries of every head: [L, H, budget, D] of k, v [L, H, T, D]."""
    pos = torch.arange(k.shape[2])
    selection = select(scores.unsqueeze(1), budget, pos=pos, sinks=sinks, recent=recent)
    slot = selection.kept[:, 0, :, :, None].long()
    return torch.take_along_dim(k, slot, dim=2), torch.take_along_dim(v, slot, dim=2)


def answers(
    model: PreTrainedModel, k: Tensor, v: Tensor, position: int, branches: Sequence[Branch]
) -> list[Answer]:
    """Each branch's answer, with the branch directly after the cache k, v [L, H, T, D]."""
    logits = continue_from(model, k, v, position, [branch.ids for branch in branches])
    assert logits is not None
    result = []
    for row, branch in zip(logits.float(), branches, strict=True):
        stop = len(branch.ids)
        # The logits of one token predict the next. A continuation has no token before its first.
        start = max(1, stop - branch.answer)
        target = torch.tensor(branch.ids[start:stop])
        predicted = row[start - 1 : stop - 1].log_softmax(dim=-1)
        nll = -predicted.gather(-1, target[:, None]).mean().item()
        result.append(Answer(bool((predicted.argmax(-1) == target).all()), nll, len(target)))
    return result


def evaluate(
    model: PreTrainedModel,
    prefilled: Iterable[Prefilled],
    scorers: Mapping[str, Scorer],
    fractions: Sequence[float],
    *,
    sinks: int = 4,
    recent: int = 16,
) -> dict[tuple[str, float], list[Answer]]:
    """Answers of all branches per (method, fraction kept); ("full", 1.0) is the whole cache."""
    results: dict[tuple[str, float], list[Answer]] = {}
    for item in prefilled:
        n = item.k.shape[2]
        branches = item.document.branches
        full = answers(model, item.k, item.v, n, branches)
        results.setdefault(("full", 1.0), []).extend(full)
        for name, scorer in scorers.items():
            scores = scorer(item)
            for fraction in fractions:
                k, v = evict(item.k, item.v, scores, round(fraction * n), sinks, recent)
                kept = answers(model, k, v, n, branches)
                results.setdefault((name, fraction), []).extend(kept)
    return results


def cost_ratio(scorer: Scorer, prefilled: Iterable[Prefilled]) -> float:
    """Cost of the ranking over the ideal ranking's, mean over documents and heads; 1 is perfect."""
    ratios = [
        (cost_of_scores(scorer(item), item.utility) / optimal_cost(item.utility)).mean()
        for item in prefilled
    ]
    return torch.stack(ratios).mean().item()


def exact_match(results: Sequence[Answer]) -> float:
    """Share of answers that are right, token for token."""
    return sum(answer.correct for answer in results) / len(results)


def perplexity(results: Sequence[Answer]) -> float:
    """Perplexity of all answers' tokens together."""
    tokens = sum(answer.tokens for answer in results)
    return math.exp(sum(answer.nll * answer.tokens for answer in results) / tokens)


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """95% confidence interval of a proportion (Wilson, 1927)."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return (centre - spread) / (1 + z * z / trials), (centre + spread) / (1 + z * z / trials)
