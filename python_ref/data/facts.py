"""Small facts to hide in a text, and the questions that ask for them.

A template states a fact about a key (`{key}`) with a value (`{value}`) in several wordings, and
asks for the value in several wordings, each ending where the value has to follow. A policy that
learns from few templates becomes a detector of their surface, such as digits or odd words, so the
templates vary in what they are about, in the kind of their values and in form: prose, records,
dialogue, code. The templates, keys and values of the splits are disjoint.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from python_ref.data import wordings
from python_ref.data.vocabulary import VOCABULARY, draw

__all__ = ["TEMPLATES", "VOCABULARY", "Fact", "Template", "draw", "instantiate", "templates"]

# How often a question repeats the words that precede the value in the fact, where one does: a
# small model answers nine of ten of those, but hardly more than half of the others.
SAME_WORDS = 0.8


@dataclass(frozen=True)
class Template:
    """Wordings of a fact and of the questions for it; `key` and `value` are kinds, see `draw`."""

    split: str
    key: str
    value: str
    facts: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """A stated fact. `statement` holds `value`; `question` is answered by " " + `value`."""

    statement: str
    question: str
    value: str
    key: str = ""


def templates(split: str) -> list[Template]:
    """The templates of "train", "dev" or "test"."""
    return [template for template in TEMPLATES if template.split == split]


def instantiate(template: Template, rng: random.Random) -> Fact:
    """A fact of this template with a key and a value of its split, and a question for it."""
    key = draw(template.key, template.split, rng)
    value = draw(template.value, template.split, rng)
    while value in key or key in value:  # or the question would give the answer away
        value = draw(template.value, template.split, rng)
    fact = rng.choice(template.facts)
    asked = list(template.questions)
    rng.shuffle(asked)
    if rng.random() < SAME_WORDS:
        asked.sort(key=lambda question: -_common_ending(fact.partition("{value}")[0], question))
    return Fact(fact.format(key=key, value=value), asked[0].format(key=key), value, key)


def _common_ending(a: str, b: str) -> int:
    """How many words at the end of two texts are the same."""
    pairs = zip(reversed(a.split()), reversed(b.split()), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _parse(split: str, text: str) -> Iterator[Template]:
    """The templates of one text of `wordings`."""
    for block in re.findall(r"^\w+ -> \w+\n(?:  .*\n?)+", text, flags=re.M):
        head, *lines = block.splitlines()
        key, value = head.split(" -> ")
        questions = tuple(line[4:] for line in lines if line.startswith("  ? "))
        facts = tuple(line[2:] for line in lines if not line.startswith("  ? "))
        yield Template(split, key, value, facts, questions)


TEMPLATES = [
    *_parse("train", wordings.TRAIN),
    *_parse("dev", wordings.DEV),
    *_parse("test", wordings.TEST),
]
