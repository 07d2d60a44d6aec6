"""Documents: a context that will be evicted from, and the branches that may follow it.

A needle document hides facts in a haystack. Each fact is asked for in a branch of its own and all
branches share one prefill; what a context token is worth is averaged over the branches, so a
policy has to keep every fact that may be asked for. A plain document is running text with its own
continuation as the only branch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from python_ref.data.document import Branch, Document
from python_ref.data.facts import Fact, Template, instantiate
from python_ref.data.haystacks import haystack, noise
from python_ref.data.prompts import Prompt, Question
from python_ref.data.tokens import beginning, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "CHAT_SHARE",
    "Branch",
    "Document",
    "haystack",
    "needle_document",
    "noise",
    "plain_document",
]

CHAT_SHARE = 0.25


def needle_document(
    tokenizer: PreTrainedTokenizerBase,
    kind: str,
    sentences: Sequence[str],
    templates: Sequence[Template],
    tokens: int,
    rng: random.Random,
    *,
    chat: bool = False,
) -> Document:
    """A haystack with one fact of each template, each at a random place.

    A template that is given several times makes facts about several keys.

    The context has at most `tokens` tokens, and hardly fewer if the sentences suffice.

    With `chat` the text is (the beginning of) a user's message in the tokenizer's chat format,
    each question ends that message, and the answer is the assistant's.
    """
    facts: dict[tuple[Template, str], Fact] = {}
    for template in templates:
        fact = instantiate(template, rng)
        facts.setdefault((template, fact.key), fact)  # two values of one key would be ambiguous
    prompt = Prompt(tokenizer, tokens, chat)
    needles = [rng.choice((" ", " ", "\n", "\n\n")) + f.statement for f in facts.values()]
    rng.shuffle(needles)
    prompt.add_haystack(sentences, needles, rng)
    questions = [Question(fact.question, "", fact.value) for fact in facts.values()]
    return prompt.document(kind, questions, "exact_match")


def plain_document(
    tokenizer: PreTrainedTokenizerBase, kind: str, text: str, context: int, continuation: int
) -> Document:
    """The first `context` tokens of `text`, continued by the next `continuation`.

    Raises ValueError if the text is shorter.
    """
    ids = beginning(tokenizer) + encode(tokenizer, text)
    if len(ids) < context + continuation:
        raise ValueError(f"text: {len(ids)} tokens, expected {context + continuation}")
    branch = Branch(tuple(ids[context : context + continuation]), continuation)
    return Document(kind, tuple(ids[:context]), (branch,), metric="perplexity")
