"""Documents: a context that will be evicted from, and the branches that may follow it.

A needle document hides facts in a haystack. Each fact is asked for in a branch of its own and all
branches share one prefill; what a context token is worth is averaged over the branches, so a
policy has to keep every fact that may be asked for. A plain document is running text with its own
continuation as the only branch.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_ref.data.facts import Template, instantiate
from python_ref.data.sources import Text, passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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


# The first is the haystack of RULER's single-needle task.
NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "Birds were singing. The road went on. Nobody was in a hurry. It was a day like any other.",
    "Nothing happened. Everyone waited. The wind was mild. Some time went by. Then it was quiet.",
    "The room was empty. A door stood open. The light was on. No one came in. No one went out.",
    "The rain fell on the roof. The street was wet. A car passed by. The lamp was lit. We slept.",
)
CHAT_SHARE = 0.25


def noise(split: str) -> tuple[str, ...]:
    """The repetitive haystacks of a split; training keeps the first one."""
    return {"train": NOISE[:3], "dev": NOISE[3:4], "test": NOISE[4:]}[split]


def haystack(
    kind: str, texts: Mapping[str, Sequence[Text]], split: str, characters: int, rng: random.Random
) -> list[str]:
    """Sentences of a haystack, each with the white space that precedes it.

    `kind` is "noise" or a key of `texts`, whose texts of `split` are used.
    """
    if kind == "noise":
        text = rng.choice(noise(split))
        text = " ".join([text] * (characters // len(text) + 1))
    else:
        own = [text for text in texts[kind] if text.split == split]
        text = passage(own, characters, rng)
    return re.findall(r"\s*\S.*?(?:[.!?][\"\u201d')]*(?=\s)|(?=\n)|$)", text.strip())


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
    """A haystack of about `tokens` tokens with one fact of each template at a random place.

    With `chat` the text is (the beginning of) a user's message in the tokenizer's chat format,
    each question ends that message, and the answer is the assistant's.
    """
    facts = {fact.question: fact for fact in (instantiate(t, rng) for t in templates)}
    before, between, space = "", "", " "
    if chat:
        before, between = _chat_format(tokenizer)
        space = ""
    pieces = [_ids(tokenizer, sentence) for sentence in sentences]
    needles = []
    for fact in facts.values():
        lead = rng.choice([" ", " ", "\n", "\n\n"])
        needles.append(_ids(tokenizer, lead + fact.statement))
    room = tokens - sum(map(len, needles))
    count = total = 0
    while count < len(pieces) and total < room:
        total += len(pieces[count])
        count += 1
    places = sorted(rng.randrange(1, count + 1) for _ in needles)

    context = _ids(tokenizer, before)
    marked = []
    for i, piece in enumerate(pieces[:count], start=1):
        context += piece
        for place, needle in zip(places, needles, strict=True):
            if place == i:
                marked.append((len(context), len(context) + len(needle)))
                context += needle
    branches = []
    for fact in facts.values():
        question = _ids(tokenizer, "\n\n" + fact.question + between)
        answer = _ids(tokenizer, space + fact.value)
        branches.append(Branch(tuple(question + answer), len(answer)))
    return Document(kind, tuple(context), tuple(branches), tuple(marked))


def plain_document(
    tokenizer: PreTrainedTokenizerBase, kind: str, text: str, context: int, continuation: int
) -> Document:
    """The first `context` tokens of `text`, continued by the next `continuation`.

    Raises ValueError if the text is shorter.
    """
    ids = _ids(tokenizer, text)
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


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids) if text else []


def _chat_format(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What precedes a user's message and what stands between it and the assistant's answer."""
    marker = "\ufffc"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": marker}], tokenize=False, add_generation_prompt=True
    )
    before, _, after = str(text).partition(marker)
    return before, after
