"""Questions and passages in the file formats in which data sets are published.

    LongBench   .jsonl, passage_retrieval_en and gov_report: `input`, `context`, `answers`, …
    BoolQ       .jsonl: `question`, `passage`, `answer` (true or false), `title`
    SQuAD       .json, versions 1.1 and 2.0: passages for `ruler/qa_1`
    HotpotQA    .json: passages for `ruler/qa_2`

Instructions are in our words. Contexts that are too long lose their middle, as in LongBench. These
data sets come divided into files for training and for testing, so a file is not divided further.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from python_ref.data.corpora import entry, read_jsonl, read_text
from python_ref.data.document import Document
from python_ref.data.haystacks import sentences
from python_ref.data.prompts import Prompt, Question
from python_ref.data.ruler_qa import Asked, Passage, Passages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Item:
    """A question about a context of its own.

    Attributes:
        kind: of the document.
        instruction: stands before the context.
        context: what will be evicted from.
        question: follows it.
        metric: that suits the answers.
    """

    kind: str
    instruction: str
    context: str
    question: Question
    metric: str


def is_questions(path: Path) -> bool:
    """Whether a file is in the format of LongBench or BoolQ, by its first line.

    Raises:
        FileNotFoundError, ValueError: see `corpora.read_jsonl`.
    """
    if path.suffix != ".jsonl":
        return False
    _, first = next(read_jsonl(path))
    return _reader(first) is not None


def has_passages(path: Path) -> bool:
    """Whether a file is taken for SQuAD or HotpotQA."""
    return path.suffix == ".json"


def questions(path: Path) -> list[Item]:
    """All questions of a LongBench or BoolQ file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is malformed; the message names the file and the line.
    """
    items = []
    for place, line in read_jsonl(path):
        reader = _reader(line)
        if reader is None:
            raise ValueError(
                f"{place}: expected the fields of LongBench (input, context, answers, dataset) or "
                f"of BoolQ (question, passage, answer), but found {', '.join(map(repr, line))}"
            )
        items.append(reader(place, line))
    return items


def document(tokenizer: PreTrainedTokenizerBase, item: Item, tokens: int | None = None) -> Document:
    """The document of one question; a context of more than `tokens` tokens loses its middle."""
    prompt = Prompt(tokenizer, sys.maxsize if tokens is None else tokens)
    prompt.add(item.instruction)
    prompt.add_ends("\n\n" + item.context.strip())
    return prompt.document(item.kind, [item.question], item.metric)


def documents(
    tokenizer: PreTrainedTokenizerBase, path: Path, tokens: int | None = None
) -> list[Document]:
    """The documents of all questions of a LongBench or BoolQ file, in its order."""
    return [document(tokenizer, item, tokens) for item in questions(path)]


def passages(path: Path) -> Passages:
    """The questions and passages of a SQuAD or HotpotQA file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is neither, or malformed, or asks nothing that can be answered; the
            message names the file and the place in it.
    """
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}), expected SQuAD or HotpotQA") from error
    asked: list[Asked] = []
    beside: list[Passage] = []
    for question, own in _asked(path, content):
        asked += question
        beside += own
    if not asked:
        raise ValueError(f"{path}: no question that can be answered")
    return Passages(tuple(asked), tuple(dict.fromkeys(beside)))


def _reader(line: dict[str, Any]) -> Callable[[str, dict[str, Any]], Item] | None:
    if {"input", "context", "answers"} <= line.keys():
        return _longbench
    if {"question", "passage", "answer"} <= line.keys():
        return _boolq
    return None


def _longbench(place: str, line: dict[str, Any]) -> Item:
    dataset = entry(place, line, "dataset", str)
    context = entry(place, line, "context", str)
    asked = entry(place, line, "input", str)
    answers = tuple(entry(place, line, "answers", list))
    if not answers or not all(isinstance(answer, str) and answer for answer in answers):
        raise ValueError(f"{place}: `answers` is {list(answers)}, expected texts")
    if dataset == "passage_retrieval_en":
        instruction = (
            "Here are numbered paragraphs from Wikipedia. Read them, and then find the one that "
            "an abstract was made from."
        )
        question = (
            f"This is the abstract.\n\n{asked}\n\nFrom which paragraph was it made? Answer with "
            f'the number, in the form "Paragraph 1", "Paragraph 2", and so on.\n\n'
        )
        lead, metric = "The answer is:", "string_match_any"
    elif dataset == "gov_report":
        instruction = "Read this report of a government agency, which you will summarize."
        question, lead, metric = "Write a summary of the report in one page.", "Summary:", "rouge_l"
    else:
        raise ValueError(
            f"{place}: `dataset` is {dataset!r}, expected passage_retrieval_en or gov_report"
        )
    asks = Question(question.strip(), lead, answers[0], answers)
    return Item(f"longbench/{dataset}", instruction, context, asks, metric)


def _boolq(place: str, line: dict[str, Any]) -> Item:
    asked = entry(place, line, "question", str).strip().rstrip("?")
    answer = "yes" if entry(place, line, "answer", bool) else "no"
    title = line.get("title")
    context = (f"{title}\n" if title else "") + entry(place, line, "passage", str)
    instruction = "Read the passage, then answer a question about it with yes or no."
    asks = Question(f"Question: {asked}?", "Answer:", answer)
    return Item("boolq", instruction, context, asks, "exact_match")


def _asked(path: Path, content: Any) -> Iterator[tuple[list[Asked], list[Passage]]]:
    """Questions with the passages that they come with."""
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        for i, article in enumerate(content["data"]):
            place = f"{path}, data[{i}]"
            for j, paragraph in enumerate(_list(place, article, "paragraphs")):
                yield _squad(f"{place}.paragraphs[{j}]", article, paragraph)
    elif isinstance(content, list):
        for i, item in enumerate(content):
            yield _hotpotqa(f"{path}, item {i}", item)
    else:
        raise ValueError(
            f"{path}: expected SQuAD, an object with a list `data`, or HotpotQA, a list of "
            f"objects with `supporting_facts`"
        )


def _squad(
    place: str, article: dict[str, Any], paragraph: Any
) -> tuple[list[Asked], list[Passage]]:
    found = []
    text = entry(place, _object(place, paragraph), "context", str)
    title = str(article.get("title", "")).replace("_", " ")
    passage = Passage(title, tuple(sentences(text)))
    for k, item in enumerate(_list(place, paragraph, "qas")):
        where = f"{place}.qas[{k}]"
        question = entry(where, _object(where, item), "question", str)
        answers = _list(where, item, "answers")
        if not answers:
            if item.get("is_impossible"):
                continue
            raise ValueError(f"{where}: `answers` is empty and `is_impossible` is not true")
        texts = [entry(where, _object(where, answer), "text", str) for answer in answers]
        start = entry(where, answers[0], "answer_start", int)
        if text[start : start + len(texts[0])] != texts[0]:
            raise ValueError(f"{where}: {texts[0]!r} is not at `answer_start` {start} of `context`")
        start -= len(text) - len(text.lstrip())
        support = _overlapping(passage, start, start + len(texts[0]))
        unique = tuple(dict.fromkeys(texts))
        found.append(Asked(question.strip(), unique, ((passage, support),)))
    return found, [passage]


def _overlapping(passage: Passage, start: int, stop: int) -> tuple[int, ...]:
    """The sentences that characters start to stop are in."""
    found, offset = [], 0
    for i, sentence in enumerate(passage.sentences):
        if offset < stop and start < offset + len(sentence):
            found.append(i)
        offset += len(sentence)
    return tuple(found)


def _hotpotqa(place: str, item: Any) -> tuple[list[Asked], list[Passage]]:
    question = entry(place, _object(place, item), "question", str)
    answer = entry(place, item, "answer", str)
    beside: dict[str, Passage] = {}
    for pair in _pairs(place, item, "context", list):
        title, lines = pair
        spaced = [(" " if i else "") + str(line).strip() for i, line in enumerate(lines)]
        beside[title] = Passage(title, tuple(spaced))
    support: dict[str, list[int]] = {}
    for title, index in _pairs(place, item, "supporting_facts", int):
        if title not in beside:
            raise ValueError(f"{place}: the supporting fact {title!r} is no title of `context`")
        # The published file has a few indices past the end.
        support.setdefault(title, []).extend(
            [index] if index < len(beside[title].sentences) else []
        )
    needed = tuple((beside[title], tuple(indices)) for title, indices in support.items())
    return [Asked(question, (answer,), needed)], list(beside.values())


def _pairs(place: str, item: dict[str, Any], key: str, second: type) -> list[tuple[str, Any]]:
    pairs = _list(place, item, key)
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], second)):
            raise ValueError(
                f"{place}: `{key}` holds {pair!r}, expected [title, {second.__name__}]"
            )
    return [(str(title), value) for title, value in pairs]


def _list(place: str, item: Any, key: str) -> list[Any]:
    found: list[Any] = entry(place, _object(place, item), key, list)
    return found


def _object(place: str, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError(f"{place}: got {type(item).__name__}, expected an object")
    return item
