"""RULER's needle-in-a-haystack tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from python_ref.data.haystacks import haystack
from python_ref.data.prompts import Prompt, Question, wording
from python_ref.data.sources import Text
from python_ref.data.vocabulary import draw, draw_distinct

# Of each, the first is the benchmark's; the others are for training.
NEEDLES = (
    "One of the special magic {kind}s for {key} is: {value}.",
    "The special magic {kind} for {key} is {value}.",
    "Remember that {value} is a special magic {kind} for {key}.",
    "Note for {key}: the magic {kind} is {value}.",
)
INSTRUCTIONS = (
    "The text below hides some special magic {kind}s. Memorize them, because you will be asked "
    "for the {kind}s afterwards.",
    "Read the following text carefully and remember the magic {kind}s that it mentions.",
    "Somewhere in this text are special magic {kind}s. A question about them will follow.",
    "Here is a long text. Keep every special magic {kind} in it in mind.",
)
# Each with the lead of its answer.
ONE_VALUE = (
    (
        "What is the special magic {kind} for {keys} mentioned in the text above?",
        "The special magic {kind} for {keys} mentioned in the text above is",
    ),
    ("Which magic {kind} belongs to {keys}?", "The magic {kind} for {keys} is"),
    ("Question: What is the magic {kind} for {keys}?", "Answer: The special magic {kind} is"),
    ("Look up {keys} in the text.", "The special magic {kind} for {keys} is"),
)
MANY_VALUES = (
    (
        "What are all the special magic {kind}s for {keys} mentioned in the text above?",
        "The special magic {kind}s for {keys} mentioned in the text above are",
    ),
    ("Which magic {kind}s belong to {keys}?", "The magic {kind}s for {keys} are"),
    ("Question: What are the magic {kind}s for {keys}?", "Answer: The special magic {kind}s are"),
    ("Look up {keys} in the text.", "The special magic {kind}s for {keys} are"),
)
MOST_BRANCHES = 6


@dataclass(frozen=True)
class Variant:
    """A needle task: `haystack` is "noise", "essay" or "needles"; `key`, `value` are kinds."""

    haystack: str
    key: str = "key"
    value: str = "digits7"
    keys: int = 1
    values: int = 1
    asked: int = 1


VARIANTS = {
    "niah_single_1": Variant("noise"),
    "niah_single_2": Variant("essay"),
    "niah_single_3": Variant("essay", value="uuid"),
    "niah_multikey_1": Variant("essay", keys=4),
    "niah_multikey_2": Variant("needles"),
    "niah_multikey_3": Variant("needles", key="uuid", value="uuid"),
    "niah_multivalue": Variant("essay", values=4),
    "niah_multiquery": Variant("essay", keys=4, asked=4),
}


def write(
    prompt: Prompt,
    task: str,
    rng: random.Random,
    split: str,
    texts: Mapping[str, Sequence[Text]],
    each: bool,
) -> list[Question]:
    """Writes the context of a task and returns its questions; see `ruler.document`."""
    variant = VARIANTS[task]
    kind = "uuid" if variant.value == "uuid" else "number"
    prompt.add(wording(INSTRUCTIONS, split, rng).format(kind=kind))
    form = wording(NEEDLES, split, rng)
    many = variant.asked * variant.values > 1
    if many and form == NEEDLES[1]:  # it says that there is only one
        form = NEEDLES[0]

    if variant.haystack == "needles":
        pairs = _list_of_needles(prompt, variant, form, kind, rng, split)
    else:
        keys = draw_distinct(variant.key, variant.keys, split, rng)
        values = draw_distinct(variant.value, variant.keys * variant.values, split, rng)
        pairs = [(key, values.pop()) for key in keys for _ in range(variant.values)]
    keys = list(dict.fromkeys(key for key, _ in pairs))
    if each:
        asked = rng.sample(keys, min(len(keys), MOST_BRANCHES))
    else:
        asked = rng.sample(keys, variant.asked)

    rng.shuffle(pairs)
    marked = [key in asked for key, _ in pairs]
    needles = [form.format(kind=kind, key=key, value=value) for key, value in pairs]
    if variant.haystack == "needles":
        for needle, mark in zip(needles, marked, strict=True):
            prompt.add("\n" + needle, mark=mark)
    else:
        sentences = haystack(variant.haystack, texts, split, 6 * prompt.tokens, rng)
        sentences[0] = "\n\n" + sentences[0].lstrip()
        spaced = [_space(split, rng) + needle for needle in needles]
        prompt.add_haystack(sentences, spaced, rng, marked=marked)

    groups = [[key] for key in asked] if each else [asked]
    questions = []
    for group in groups:
        # In the order of the question, and for one key in the order of the text.
        found = [value for key in group for k, value in pairs if k == key]
        forms = MANY_VALUES if len(found) > 1 else ONE_VALUE
        text, lead = wording(forms, split, rng)
        names = {"kind": kind, "keys": _enumeration(group)}
        answer = ", ".join(found)
        questions.append(Question(text.format(**names), lead.format(**names), answer, tuple(found)))
    return questions


def _list_of_needles(
    prompt: Prompt, variant: Variant, form: str, kind: str, rng: random.Random, split: str
) -> list[tuple[str, str]]:
    """As many keys and values as fill the prompt with needles, each on a line; two at least."""
    pairs: dict[str, str] = {}
    room = prompt.room
    while True:
        key, value = draw(variant.key, split, rng), draw(variant.value, split, rng)
        if key in pairs:
            continue
        room -= prompt.size("\n" + form.format(kind=kind, key=key, value=value))
        if room < 0 and len(pairs) >= 2:
            return list(pairs.items())
        pairs[key] = value


def _space(split: str, rng: random.Random) -> str:
    return wording((" ", "\n", "\n\n"), split, rng)


def _enumeration(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b, and c`."""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join(items[:-1]) + ", and " + items[-1]
