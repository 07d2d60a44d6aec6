# ruff: noqa: E501 - one wording a line reads best
"""RULER's question answering: the passages that a question is about, among others.

qa_1 asks about one passage (SQuAD), qa_2 needs two (HotpotQA). `published` reads the passages of
those data sets from the user's files; `made_up` writes passages about invented things and people.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from python_ref.data.prompts import Prompt, Question, wording
from python_ref.data.vocabulary import draw, draw_distinct

# Of each, the first is the benchmark's; the others are for training.
INSTRUCTIONS = (
    "Answer a question with the help of the given documents. Give the answer only, without any "
    "other words.\n\nThese are the documents.",
    "Read these documents. A question about them will follow.",
    "Below are some documents. Remember what they say.",
)
ASK = (
    ("Answer with the help of the given documents, without any other words.\n\nQuestion: {}", "Answer:"),
    ("Question: {}", "Answer:"),
    ("Q: {}", "A:"),
    ("According to the documents: {}", "The answer is"),
)  # fmt: skip
MOST_BRANCHES = 4


@dataclass(frozen=True)
class Passage:
    """A titled passage; each sentence has the white space that precedes it."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A question about passages.

    Attributes:
        text: the question.
        answers: acceptable ones; the first is what a model should say.
        support: the passages that it takes, each with the indices of the sentences that matter.
    """

    text: str
    answers: tuple[str, ...]
    support: tuple[tuple[Passage, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Passages:
    """Questions, and the passages that may stand beside those that a question is about."""

    questions: tuple[Asked, ...]
    passages: tuple[Passage, ...]


def write(
    prompt: Prompt, source: Passages, rng: random.Random, split: str, each: bool
) -> list[Question]:
    """Writes passages in random order and returns the questions.

    One question, or with `each` up to four about different passages. What they are about is
    whole; the other passages fill the rest of the prompt, the last of them cut.

    Raises:
        ValueError: no question of the source has passages that fit.
    """
    prompt.add(wording(INSTRUCTIONS, split, rng))
    chosen, gold = _choose(prompt, source, rng, MOST_BRANCHES if each else 1)
    room = prompt.room - sum(_size(prompt, passage) for passage in gold)
    rest = [passage for passage in source.passages if passage not in gold]
    rng.shuffle(rest)
    whole, used = list(gold), 0
    # A file may have few passages: they stand there again until the context is full.
    while rest and _size(prompt, rest[used % len(rest)]) <= room:
        whole.append(rest[used % len(rest)])
        room -= _size(prompt, whole[-1])
        used += 1
    rng.shuffle(whole)
    for number, passage in enumerate(whole, start=1):
        prompt.add(_heading(number, passage))
        for i, sentence in enumerate(passage.sentences):
            prompt.add(sentence, mark=i in gold.get(passage, ()))
    number = len(whole) + 1
    while rest and prompt.fill(_text(number, rest[used % len(rest)])):
        number, used = number + 1, used + 1

    questions = []
    for asked in chosen:
        text, lead = wording(ASK, split, rng)
        questions.append(Question(text.format(asked.text), lead, asked.answers[0], asked.answers))
    return questions


def _choose(
    prompt: Prompt, source: Passages, rng: random.Random, most: int
) -> tuple[list[Asked], dict[Passage, set[int]]]:
    """Questions whose passages fit, and those passages with the sentences that matter."""
    chosen: list[Asked] = []
    gold: dict[Passage, set[int]] = {}
    needed = prompt.room
    for asked in rng.sample(source.questions, min(len(source.questions), 100)):
        new = [passage for passage, _ in asked.support if passage not in gold]
        size = sum(_size(prompt, passage) for passage in [*gold, *new])
        # One question may fill the context; several leave half of it to what is not asked for.
        if size <= (prompt.room // 2 if chosen else prompt.room):
            chosen.append(asked)
            for passage, indices in asked.support:
                gold.setdefault(passage, set()).update(indices)
        elif not chosen:
            needed = size if needed == prompt.room else min(needed, size)
        if len(chosen) == most:
            break
    if not chosen:
        prompt.refuse(len(prompt.ids) + needed)
    return chosen, gold


def _heading(number: int, passage: Passage) -> str:
    title = f"{passage.title}\n" if passage.title else ""
    return f"\n\nDocument {number}:\n{title}"


def _text(number: int, passage: Passage) -> str:
    return _heading(number, passage) + "".join(passage.sentences)


def _size(prompt: Prompt, passage: Passage) -> int:
    """Of a whole passage; its pieces are tokenized apart as `write` adds them."""
    return prompt.size(_heading(10_000, passage)) + sum(map(prompt.size, passage.sentences))


# --- made-up passages: things and people, whose properties are stated one a sentence


@dataclass(frozen=True)
class Relation:
    """A property of a subject: `{s}`; its value `{v}` is of a kind of the vocabulary.

    A value that is a person leads on to the person's passage: "the founder of {s}" names it.
    """

    kind: str
    sentence: str
    question: str
    leads_to: str = ""


THINGS = {
    "train": ("Museum", "Castle", "Library", "Company", "Hotel", "Theatre", "School", "Garden"),
    "dev": ("Hospital", "Observatory", "Stadium"),
    "test": ("Institute", "Bridge", "Orchestra", "Brewery"),
}
OF_THINGS = {
    "train": (
        Relation("city", "{s} stands in {v}.", "In which city does {s} stand?"),
        Relation("year", "{s} was opened in {v}.", "In which year was {s} opened?"),
        Relation("noun", "The emblem of {s} is a {v}.", "What is the emblem of {s}?"),
        Relation("color", "The roof of {s} is {v}.", "Which color is the roof of {s}?"),
        Relation("animal", "A {v} guards {s}.", "Which animal guards {s}?"),
        Relation("person", "{s} was founded by {v}.", "Who founded {s}?", "the founder of {s}"),
        Relation("person", "The director of {s} is {v}.", "Who is the director of {s}?", "the director of {s}"),
        Relation("person", "{s} belongs to {v}.", "To whom does {s} belong?", "the owner of {s}"),
    ),
    "dev": (
        Relation("city", "You find {s} in the middle of {v}.", "In the middle of which city is {s}?"),
        Relation("digits3", "{s} has {v} rooms.", "How many rooms does {s} have?"),
        Relation("person", "{s} was named after {v}.", "After whom was {s} named?", "the person whom {s} was named after"),
    ),
    "test": (
        Relation("city", "The home of {s} is the city of {v}.", "Which city is the home of {s}?"),
        Relation("digits4", "{s} cost {v} dollars.", "How many dollars did {s} cost?"),
        Relation("noun", "Visitors of {s} receive a {v}.", "What do visitors of {s} receive?"),
        Relation("person", "{s} was designed by {v}.", "Who designed {s}?", "the designer of {s}"),
    ),
}  # fmt: skip
OF_PEOPLE = {
    "train": (
        Relation("city", "{s} was born in {v}.", "Where was {s} born?"),
        Relation("job", "{s} works as a {v}.", "What is the job of {s}?"),
        Relation("instrument", "{s} plays the {v}.", "Which instrument does {s} play?"),
        Relation("subject", "{s} studied {v}.", "What did {s} study?"),
        Relation("animal", "{s} keeps a {v}.", "Which animal does {s} keep?"),
        Relation("food", "{s} likes {v} best.", "Which food does {s} like best?"),
    ),
    "dev": (
        Relation("city", "{s} now lives in {v}.", "In which city does {s} live now?"),
        Relation("noun", "{s} once lost a {v}.", "What did {s} lose once?"),
        Relation("year", "{s} died in {v}.", "In which year did {s} die?"),
    ),
    "test": (
        Relation("city", "{s} spent the last summer in {v}.", "Where did {s} spend the last summer?"),
        Relation("job", "The father of {s} was a {v}.", "What was the job of the father of {s}?"),
        Relation("food", "{s} cannot eat {v}.", "What can {s} not eat?"),
    ),
}  # fmt: skip
MOST_PAIRS = 140  # of a thing and a person: there are no more invented names in a split


def made_up(hops: int, tokens: int, split: str, rng: random.Random) -> Passages:
    """Passages about invented things and about people, with a question for each fact.

    Args:
        hops: with two, a question is about a person whom only another passage identifies.
        tokens: how many the passages should have in all, roughly; at most 12,000.
        split: whose names and relations to use.
        rng: decides everything.
    """
    pairs = max(6, min(MOST_PAIRS, tokens // 60))
    names = draw_distinct("invented", -(-pairs // len(THINGS[split])), split, rng)
    things = [f"the {name} {kind}" for name in names for kind in THINGS[split]]
    things = rng.sample(things, pairs)
    people = draw_distinct("person", len(things), split, rng)
    questions, passages = [], []
    for thing, person in zip(things, people, strict=True):
        bridge = rng.choice([r for r in OF_THINGS[split] if r.leads_to])
        plain = [r for r in OF_THINGS[split] if not r.leads_to]
        about_thing = [bridge, *rng.sample(plain, min(3, len(plain)))]
        rng.shuffle(about_thing)
        about_person = rng.sample(OF_PEOPLE[split], min(4, len(OF_PEOPLE[split])))
        values = {r: person if r is bridge else draw(r.kind, split, rng) for r in about_thing}
        values |= {r: draw(r.kind, split, rng) for r in about_person}
        first = _passage(thing, about_thing, values)
        second = _passage(person, about_person, values)
        passages += [first, second]
        for passage, subject, relations in (
            (first, thing, about_thing),
            (second, person, about_person),
        ):
            for i, relation in enumerate(relations):
                if hops == 1:
                    question = relation.question.format(s=subject)
                    support: tuple[tuple[Passage, tuple[int, ...]], ...] = ((passage, (i,)),)
                elif passage is second:
                    detour = bridge.leads_to.format(s=thing)
                    question = relation.question.format(s=detour)
                    support = ((first, (about_thing.index(bridge),)), (second, (i,)))
                else:
                    continue
                questions.append(Asked(question, (values[relation],), support))
    return Passages(tuple(questions), tuple(passages))


def _passage(subject: str, relations: Sequence[Relation], values: dict[Relation, str]) -> Passage:
    sentences = []
    for i, relation in enumerate(relations):
        sentence = relation.sentence.format(s=subject, v=values[relation])
        sentences.append(("" if i == 0 else " ") + sentence[0].upper() + sentence[1:])
    return Passage(subject[0].upper() + subject[1:], tuple(sentences))
