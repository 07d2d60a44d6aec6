"""A stream of documents from several sources with weights: what training and evaluation read."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from python_ref.data import corpora, published, ruler, sources
from python_ref.data.document import Branch, Document
from python_ref.data.documents import CHAT_SHARE, needle_document, plain_document
from python_ref.data.facts import templates
from python_ref.data.haystacks import haystack
from python_ref.data.ruler_qa import Passages
from python_ref.data.sources import SPLITS, Text, passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    # Makes a document from (tokenizer, rng, tokens of the context, split).
    Maker = Callable[[PreTrainedTokenizerBase, random.Random, int, str], Document]
    # The same for one split, and with the number of the document first.
    _Source = Callable[[int, PreTrainedTokenizerBase, random.Random, int], Document]
else:
    Maker = Callable[[Any, random.Random, int, str], Document]

TEXTS: dict[str, Callable[[], list[Text]]] = {
    "dialogue": sources.dialogues,
    "novel": sources.novels,
    "essay": sources.essays,
}


def makers() -> dict[str, Maker]:
    """The built-in sources: "ruler/<task>", "needles", "dialogue", "novel", "essay".

    "needles/seen" has the wordings of training with the split's own keys, values and texts.

    A maker gets (tokenizer, rng, tokens of the context, split). It loads the texts that it needs
    when it is first called.
    """
    made: dict[str, Maker] = {
        f"ruler/{task}": functools.partial(_ruler, task) for task in ruler.TASKS
    }
    made["needles"] = _needles
    made["needles/seen"] = functools.partial(_needles, wordings="train")
    made |= {kind: functools.partial(_running_text, kind) for kind in TEXTS}
    return made


def documents(
    tokenizer: PreTrainedTokenizerBase,
    sources: Mapping[str, float],
    count: int,
    *,
    lengths: tuple[int, int] = (256, 2000),
    split: str = "train",
    seed: int = 0,
) -> Iterator[Document]:
    """`count` documents; the i-th depends on `i` and the arguments, not on those before it.

    Args:
        tokenizer: of the model that will read them.
        sources: weights of built-in sources (see `makers`) and of the user's files: texts and
            chats (see `corpora`), or questions in a published format (see `published`).
        count: of documents.
        lengths: least and most tokens of a context; log-uniform between.
        split: "train", "dev" or "test"; they share no texts, keys or values. Only a file in a
            published format is whole in each, since those data sets come divided.
        seed: of all choices.

    Raises:
        ValueError: an argument is wrong, or a user's file is malformed; before any document.
        FileNotFoundError: a source is neither built in nor a file.
    """
    if split not in SPLITS:
        raise ValueError(f"split: {split!r}, expected one of {', '.join(SPLITS)}")
    if not 1 <= lengths[0] <= lengths[1]:
        raise ValueError(f"lengths: {lengths}, expected 1 <= least <= most")
    if count < 0:
        raise ValueError(f"count: {count}, expected 0 or more")
    if not sources:
        raise ValueError("sources: none, expected at least one")
    for name, weight in sources.items():
        _check_weight(name, weight)
    chosen = {name: _resolve(name, split, seed) for name in sources}

    def stream() -> Iterator[Document]:
        shortest, longest = lengths
        for i in range(count):
            rng = random.Random(f"{seed}/{split}/{i}")
            (name,) = rng.choices(list(sources), list(sources.values()))
            tokens = round(shortest * (longest / shortest) ** rng.random())
            # Of the source, too: else all tasks would draw the same keys and values.
            own = random.Random(f"{seed}/{split}/{i}/{name}")
            yield chosen[name](i, tokenizer, own, tokens)

    return stream()


def parse_sources(arguments: Sequence[str]) -> dict[str, float]:
    """`["ruler/vt=2", "chat.jsonl"]` as {"ruler/vt": 2.0, "chat.jsonl": 1.0}.

    "ruler" stands for all tasks of RULER, which share its weight.

    Raises:
        ValueError: a weight is not a positive number, or a source is given twice.
    """
    weights: dict[str, float] = {}
    for argument in arguments:
        name, equals, number = argument.rpartition("=")
        if not equals:
            name, number = argument, "1"
        try:
            weight = float(number)
        except ValueError:
            raise ValueError(f"{argument}: weight {number!r}, expected a number") from None
        _check_weight(name, weight)
        names = [f"ruler/{task}" for task in ruler.TASKS] if name == "ruler" else [name]
        for one in names:
            if one in weights:
                raise ValueError(f"{argument}: the source {one} is given twice")
            weights[one] = weight / len(names)
    return weights


def question_inside(document: Document, branch: int) -> Document:
    """The protocol "question in the prefill": the context ends with the question of one branch.

    Only the last token of the question stays outside, so that the answer's first token is
    predicted after the eviction.

    Raises:
        ValueError: the branch has no question.
    """
    asked = document.branches[branch]
    if not asked.question:
        raise ValueError(f"branch: {branch} of a document of {document.kind} has no question")
    rest = Branch(asked.ids[len(asked.question) - 1 :], asked.answer, 1.0, asked.references)
    return replace(document, context=document.context + asked.question[:-1], branches=(rest,))


def _check_weight(name: str, weight: float) -> None:
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"{name}: weight {weight}, expected a positive number")


def _resolve(name: str, split: str, seed: int) -> _Source:
    built_in = makers()
    if name in built_in:
        make = built_in[name]
        return lambda i, tokenizer, rng, tokens: make(tokenizer, rng, tokens, split)
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"source {name!r}: not a file, and not built in; built in are {', '.join(built_in)}"
        )
    if published.has_passages(path):
        passages = published.passages(path)
        task = "qa_2" if any(len(asked.support) > 1 for asked in passages.questions) else "qa_1"
        return lambda i, tokenizer, rng, tokens: _ruler(
            task, tokenizer, rng, tokens, split, passages
        )
    if published.is_questions(path):
        questions = published.questions(path)
        random.Random(seed).shuffle(questions)
        return lambda i, tokenizer, rng, tokens: published.document(
            tokenizer, questions[i % len(questions)], tokens
        )
    items = [item for item in corpora.read(path) if item.split == split]
    if not items:
        raise ValueError(f"{name}: nothing for the split {split!r}, expected five texts or more")
    return lambda i, tokenizer, rng, tokens: corpora.document(
        tokenizer, path.stem, items, rng, tokens
    )


@functools.cache
def _texts(kind: str) -> list[Text]:
    return TEXTS[kind]()


def _ruler(
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    rng: random.Random,
    tokens: int,
    split: str,
    passages: Passages | None = None,
) -> Document:
    train = split == "train"
    essays = task.startswith("niah") and task != "niah_single_1"
    return ruler.document(
        task,
        tokenizer,
        rng,
        tokens,
        split,
        texts={"essay": _texts("essay")} if essays else {},
        branches="each" if train else "one",
        chat=train and _some_chats(tokenizer, rng),
        passages=passages,
    )


def _needles(
    tokenizer: PreTrainedTokenizerBase,
    rng: random.Random,
    tokens: int,
    split: str,
    wordings: str | None = None,
) -> Document:
    """Facts of the split's templates: 2 to 6 in training, else 4; fewer in a short context."""
    kind = rng.choice(["noise", *TEXTS])
    texts = {kind: _texts(kind)} if kind != "noise" else {}
    most = max(1, tokens // 80)
    count = min(rng.randint(2, 6) if split == "train" else 4, most)
    own = [replace(template, split=split) for template in templates(wordings or split)]
    chosen = rng.sample(own, count)
    if split == "train" and rng.random() < 0.3:  # several keys of one kind, as in multi-key tasks
        chosen[1:3] = [chosen[0]] * len(chosen[1:3])
    sentences = haystack(kind, texts, split, 6 * tokens, rng)
    chat = split == "train" and _some_chats(tokenizer, rng)
    document = needle_document(tokenizer, kind, sentences, chosen, tokens, rng, chat=chat)
    return replace(document, kind="needles")


def _running_text(
    kind: str, tokenizer: PreTrainedTokenizerBase, rng: random.Random, tokens: int, split: str
) -> Document:
    own = [text for text in _texts(kind) if text.split == split]
    future = min(corpora.MOST_CONTINUATION, max(1, tokens // 2))
    text = passage(own, 7 * (tokens + future), rng)
    return plain_document(tokenizer, kind, text, tokens, future)


def _some_chats(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> bool:
    return rng.random() < CHAT_SHARE and tokenizer.chat_template is not None
