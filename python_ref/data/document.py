"""What a document is: a context that will be evicted from, and the branches that may follow it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """Tokens that follow the context; the last `answer` of them are what a model should say.

    Attributes:
        ids: a question and its answer, or a continuation (then `answer == len(ids)`).
        answer: how many tokens of `ids` are the answer.
        weight: of this future in a context's utility, relative to the other branches.
        references: texts that a metric compares a generated answer with; empty: the answer itself.
    """

    ids: tuple[int, ...]
    answer: int
    weight: float = 1.0
    references: tuple[str, ...] = ()

    @property
    def question(self) -> tuple[int, ...]:
        """The tokens between the context and the answer."""
        return self.ids[: len(self.ids) - self.answer]


@dataclass(frozen=True)
class Document:
    """A context and the branches that may follow it.

    Attributes:
        kind: the task or the source of the text, such as "ruler/niah_single_1" or "dialogue".
        context: the tokens that will be evicted from.
        branches: at least one.
        marked: token ranges [start, stop) of the context that hold what is asked for.
        metric: a name of `python_ref.evaluation.metrics` that suits the answers.
    """

    kind: str
    context: tuple[int, ...]
    branches: tuple[Branch, ...]
    marked: tuple[tuple[int, int], ...] = ()
    metric: str = "exact_match"
