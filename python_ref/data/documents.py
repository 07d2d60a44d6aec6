"""Documents: a context that will be evicted from, and the branches that may follow it.

A needle document hides facts in a haystack. Each fact is asked for in a branch of its own and all
branches share one prefill; what a context token is worth is averaged over the branches, so a
policy has to keep every fact that may be asked for. A plain document is running text with its own
continuation as the only branch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from python_ref.data.document import Branch, Document
from python_ref.data.facts import Fact, Template, instantiate
from python_ref.data.haystacks import haystack, noise
from python_ref.data.prompts import Prompt, Question
from python_ref.data.sources import Text, passage
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
    "training_documents",
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


def training_documents(
    tokenizer: PreTrainedTokenizerBase,
    texts: Mapping[str, Sequence[Text]],
    templates: Sequence[Template],
    *,
    needles: int,
    plain: int,
    seed: int,
) -> list[Document]:
    """`needles` needle documents and `plain` plain ones of the training split, lengths varied.

    Lengths are log-uniform, 256 to 800 tokens; every sixteenth document has 1,000 to 2,000.
    """
    rng = random.Random(seed)
    documents = []
    for i in range(needles + plain):
        shortest, longest = (1000, 2000) if i % 16 == 15 else (256, 800)
        tokens = round(shortest * (longest / shortest) ** rng.random())
        if i < needles:
            kind = rng.choice(["noise", *texts])
            chosen = rng.sample(list(templates), k=min(rng.randint(2, 6), tokens // 80))
            if rng.random() < 0.3:  # several keys of one kind, as in multi-key retrieval
                chosen[1:3] = [chosen[0]] * len(chosen[1:3])
            sentences = haystack(kind, texts, "train", 6 * tokens, rng)
            chat = tokenizer.chat_template is not None and rng.random() < CHAT_SHARE
            documents.append(
                needle_document(tokenizer, kind, sentences, chosen, tokens, rng, chat=chat)
            )
        else:
            kind = list(texts)[i % len(texts)]
            own = [text for text in texts[kind] if text.split == "train"]
            future = min(300, tokens // 2)
            text = passage(own, 7 * (tokens + future), rng)
            documents.append(plain_document(tokenizer, kind, text, tokens, future))
    return documents
