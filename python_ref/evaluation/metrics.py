"""What an answer is worth: each metric's definition, and how it is averaged and read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Answer:
    """How a model does on one branch when every answer token follows the right ones.

    Attributes:
        hits: tokens that are the most likely ones where they stand.
        tokens: in the answer.
        nll: mean negative log-likelihood of the answer's tokens, in nats.
    """

    hits: int
    tokens: int
    nll: float

    @property
    def correct(self) -> bool:
        """Greedy decoding would give the answer, token for token.

        One forward tells: greedy decoding starts on the answer if its first token is the most
        likely one, and stays on it as long as that is true of each next token.
        """
        return self.hits == self.tokens


def score_answer(logits: Tensor, target: Tensor) -> Answer:
    """The answer `target` [t] under the logits [t, vocabulary] that predict its tokens."""
    predicted = logits.float().log_softmax(dim=-1)
    nll = -predicted.gather(-1, target[:, None]).mean().item()
    return Answer(int((predicted.argmax(dim=-1) == target).sum()), len(target), nll)


def exact_match(answers: Sequence[Answer]) -> float:
    """Share of answers that are right, token for token."""
    return sum(answer.correct for answer in answers) / len(answers)


def token_accuracy(answers: Sequence[Answer]) -> float:
    """Share of all answers' tokens that are the most likely ones where they stand."""
    return sum(answer.hits for answer in answers) / sum(answer.tokens for answer in answers)


def answer_nll(answers: Sequence[Answer]) -> float:
    """Mean negative log-likelihood of all answers' tokens together, in nats."""
    total = sum(answer.nll * answer.tokens for answer in answers)
    return total / sum(answer.tokens for answer in answers)


def perplexity(answers: Sequence[Answer]) -> float:
    """Perplexity of all answers' tokens together."""
    return math.exp(answer_nll(answers))


def string_match(text: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the text, whatever the case (RULER)."""
    return sum(_occurs(reference, text) for reference in references) / len(references)


def string_match_any(text: str, references: Sequence[str]) -> float:
    """1 if any reference occurs in the text, whatever the case (RULER's question answering)."""
    return float(any(_occurs(reference, text) for reference in references))


def _occurs(reference: str, text: str) -> bool:
    """Whether the text says the reference; "Paragraph 15" does not say "Paragraph 1"."""
    return re.search(re.escape(reference.lower()) + r"(?!(?<=\d)\d)", text.lower()) is not None


def rouge_l(text: str, references: Sequence[str]) -> float:
    """ROUGE-L of the best reference: F1 of the longest common subsequence of words.

        R = LCS / reference words,  P = LCS / text words,  F1 = 2 P R / (P + R)

    Words are runs of letters and digits in lower case (Lin, 2004).
    """
    return max(_rouge_l(_words(text), _words(reference)) for reference in references)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _rouge_l(said: Sequence[str], wanted: Sequence[str]) -> float:
    common = longest_common_subsequence(said, wanted)
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest sequence that is left of both when items are deleted."""
    row = [0] * (len(b) + 1)  # of the prefixes of b, against what has been seen of a
    for item in a:
        diagonal = 0
        for j, other in enumerate(b, start=1):
            above = row[j]
            row[j] = diagonal + 1 if item == other else max(above, row[j - 1])
            diagonal = above
    return row[-1]


# Metrics of generated text, by the name that a document gives.
TEXT_METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "string_match": string_match,
    "string_match_any": string_match_any,
    "rouge_l": rouge_l,
}


@dataclass(frozen=True)
class Metric:
    """How a metric's values, one in each record, are put together and shown.

    Attributes:
        label: in tables and plots.
        key: of the value in a record's metrics.
        weight: what a record counts by: "questions", "tokens" (of answers) or "records".
        higher_is_better: which end is good.
        proportion: a question's value lies between wrong, 0, and right, 1. A mean of such values
            varies at most as much as if all were 0 or 1.
        exponential: the mean is shown as exp(mean), as a perplexity is.
        by_budget: it differs between budgets.
    """

    label: str
    key: str
    weight: str
    higher_is_better: bool
    proportion: bool = False
    exponential: bool = False
    by_budget: bool = True

    def finish(self, mean: Tensor) -> Tensor:
        """The figure shown, of weighted means."""
        return torch.exp(mean) if self.exponential else mean


METRICS = {
    "exact_match": Metric("exact match", "exact_match", "questions", True, proportion=True),
    "string_match": Metric(
        "references found in the answer", "string_match", "questions", True, proportion=True
    ),
    "string_match_any": Metric(
        "any reference found in the answer", "string_match_any", "questions", True, proportion=True
    ),
    "rouge_l": Metric("ROUGE-L", "rouge_l", "questions", True),
    "token_accuracy": Metric("answer tokens right", "token_accuracy", "tokens", True),
    "nll": Metric("answer NLL, nats a token", "nll", "tokens", False),
    "perplexity": Metric("perplexity", "nll", "tokens", False, exponential=True),
    "cost": Metric("ranking cost / ideal", "cost", "records", False, by_budget=False),
    "cost_pinned": Metric(
        "ranking cost / ideal, with pins", "cost_pinned", "records", False, by_budget=False
    ),
    "lost": Metric("future attention lost / least possible", "lost", "records", False),
    "lost_pinned": Metric(
        "future attention lost / least possible, with pins", "lost_pinned", "records", False
    ),
    # Of rows that are unequally long: what padding to a rectangle would make all of them.
    "longest": Metric("entries in the longest row", "longest", "records", False),
}
