"""The results table: held-out documents, and what each method answers after eviction."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

from python_ref.agents import Agent
from python_ref.data.documents import Document, haystack, needle_document, plain_document
from python_ref.data.facts import Template, templates
from python_ref.data.sources import Text, passage
from python_ref.evaluation import (
    by_agent,
    by_method,
    cost_ratio,
    evaluate,
    exact_match,
    perplexity,
    prefill_document,
    wilson_interval,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

METHODS = ("streaming_llm", "keydiff", "snapkv", "oracle")
FRACTIONS = (0.25, 0.125)

T = TypeVar("T")
Texts = Mapping[str, Sequence[Text]]


def needle_tests(
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    split: str,
    choices: Sequence[Template],
    count: int,
    seed: int,
    tokens: tuple[int, int] = (450, 900),
) -> list[Document]:
    """Documents with four needles of different templates each, in the haystacks of `split`."""
    rng = random.Random(seed)
    documents = []
    for i in range(count):
        kind = ["noise", *texts][i % (1 + len(texts))]
        length = rng.randint(*tokens)
        sentences = haystack(kind, texts, split, 6 * length, rng)
        chosen = rng.sample(list(choices), 4)
        documents.append(needle_document(tokenizer, kind, sentences, chosen, length, rng))
    return documents


def plain_tests(
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    split: str,
    kinds: Sequence[str],
    count: int,
    seed: int,
    context: int = 1000,
    continuation: int = 200,
) -> list[Document]:
    """`count` windows of running text, the kinds taking turns."""
    rng = random.Random(seed)
    documents = []
    for i in range(count):
        kind = kinds[i % len(kinds)]
        own = [text for text in texts[kind] if text.split == split]
        text = passage(own, 7 * (context + continuation), rng)
        documents.append(plain_document(tokenizer, kind, text, context, continuation))
    return documents


def evaluation_documents(
    tokenizer: PreTrainedTokenizerBase, texts: Texts, split: str
) -> dict[str, list[Document]]:
    """The tasks of the results table, on the texts of "dev" or "test"."""
    return {
        "needle, unseen templates": needle_tests(
            tokenizer, texts, split, templates(split), 24, seed=21
        ),
        "needle, seen templates": needle_tests(
            tokenizer, texts, split, templates("train"), 12, seed=22
        ),
        "dialogue": plain_tests(tokenizer, texts, split, ["dialogue"], 6, seed=23),
        "novels and essays": plain_tests(tokenizer, texts, split, ["novel", "essay"], 4, seed=24),
    }


def table(model: PreTrainedModel, task: str, documents: Sequence[Document], agent: Agent) -> str:
    """One task as a Markdown table: methods against the fraction of the cache kept."""
    scorers = {"kvp": by_agent(agent), **{name: by_method(name) for name in METHODS}}
    prefilled = [prefill_document(model, d) for d in progress(documents, f"prefill: {task}")]
    results = evaluate(model, progress(prefilled, f"evaluate: {task}"), scorers, FRACTIONS)
    full = results["full", 1.0]
    needle = bool(documents[0].marked)
    lengths = [len(document.context) for document in documents]
    if needle:
        metric, score, digits = "exact match", exact_match, 2
    else:
        metric, score, digits = "perplexity", perplexity, 1
    rows = [
        f"**{task}**: {metric}; full cache {score(full):.{digits}f}; "
        f"n = {len(full)} {'questions in' if needle else 'continuations of'} {len(documents)} "
        f"contexts of {min(lengths)} to {max(lengths)} tokens",
        "",
        "| method | " + " | ".join(f"{f:.1%} kept" for f in FRACTIONS) + " | cost / optimal |",
        "|---" * (len(FRACTIONS) + 2) + "|",
    ]
    for name, scorer in scorers.items():
        cells = [name]
        for fraction in FRACTIONS:
            answers = results[name, fraction]
            cells.append(f"{score(answers):.{digits}f}")
            if needle:
                hits = sum(answer.correct for answer in answers)
                low, high = wilson_interval(hits, len(answers))
                cells[-1] += f" ({low:.2f} to {high:.2f})"
        cells.append(f"{cost_ratio(scorer, prefilled):.2f}")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def progress(items: Iterable[T], label: str) -> Iterator[T]:
    """The items, with a progress bar on stderr."""
    return iter(tqdm(items, desc=label, file=sys.stderr))
