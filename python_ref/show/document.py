"""What a page shows of a document that a real model has read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from python_ref.data.document import Document
from python_ref.data.documents import plain_document
from python_ref.data.prompts import Prompt, Question
from python_ref.data.tokens import encode
from python_ref.evaluation import Contestant, prefill_document
from python_ref.evaluation.contestants import common_needs
from python_ref.show.page import ShowData
from python_ref.show.tokens import token_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONTINUATION = 128
SHORTEST = 32


def show_document(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    document: Document,
    contestants: Sequence[Contestant],
    *,
    title: str,
    model_name: str,
    sinks: int = 4,
    recent: int = 16,
) -> ShowData:
    """Prefills the context once and scores it by every contestant.

    Raises:
        ValueError: a contestant cannot score this model's cache.
    """
    item = prefill_document(model, document, common_needs(contestants))
    answers = [branch.ids[len(branch.question) :] for branch in document.branches]
    return ShowData(
        tokens=token_texts(tokenizer, document.context),
        utility=item.utility.float().cpu(),
        methods={c.name: c.score(item).float().cpu() for c in contestants},
        marked=document.marked,
        branches=[
            (str(tokenizer.decode(list(branch.question))), str(tokenizer.decode(list(answer))))
            for branch, answer in zip(document.branches, answers, strict=True)
        ],
        sinks=sinks,
        recent=recent,
        title=title,
        model=model_name,
    )


def text_document(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    tokens: int,
    question: str | None = None,
    answer: str | None = None,
) -> Document:
    """A context of at most `tokens` tokens from the beginning of a text, and what follows it.

    With a question and its answer they follow, and the places where the context holds the answer
    are marked. Without, the text's own continuation follows.

    Raises:
        ValueError: only one of question and answer is given, or the text is too short.
    """
    if (question is None) != (answer is None):
        given, missing = ("question", "answer") if answer is None else ("answer", "question")
        raise ValueError(f"{given}: got no {missing} with it, expected both or neither")
    ids = encode(tokenizer, text)
    if len(ids) < SHORTEST:
        raise ValueError(f"text: {len(ids)} tokens, expected at least {SHORTEST}")
    if question is None or answer is None:
        continuation = min(CONTINUATION, len(ids) // 4)
        context = min(tokens, len(ids) - continuation)
        return plain_document(tokenizer, "text", text, context, continuation)
    prompt = Prompt(tokenizer, tokens)
    prompt.ids += ids[: prompt.room]
    document = prompt.document("text", [Question(question, "", answer)], "exact_match")
    return replace(document, marked=occurrences(tokenizer, document.context, answer))


def occurrences(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str
) -> tuple[tuple[int, int], ...]:
    """Token ranges [start, stop) of `ids` that hold `text`, whatever the case of its letters."""
    pieces = [piece.lower() for piece in token_texts(tokenizer, ids)]
    wanted = text.strip().lower()
    owner = [i for i, piece in enumerate(pieces) for _ in piece]  # the token of each character
    whole = "".join(pieces)
    ranges = []
    at = whole.find(wanted) if wanted else -1
    while at >= 0:
        ranges.append((owner[at], owner[at + len(wanted) - 1] + 1))
        at = whole.find(wanted, at + len(wanted))
    return tuple(ranges)
