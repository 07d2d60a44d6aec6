"""RULER's tasks of tracing and of aggregation: variable tracking, common and frequent words."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

from python_ref.data.haystacks import haystack
from python_ref.data.prompts import Prompt, Question, wording
from python_ref.data.vocabulary import draw_distinct, words

HOPS = 4
DOTS = "...."
ZETA_2 = math.pi**2 / 6

# Of each, the first is the benchmark's; the others are for training.
ASSIGNMENTS = (
    ("VAR {name} = {value}", "VAR {name} = VAR {other}"),
    ("SET {name} TO {value}", "SET {name} TO {other}"),
    ("{name} := {value}", "{name} := {other}"),
    ("The variable {name} is {value}.", "The variable {name} is the same as {other}."),
)
TRACKING = (
    "Memorize the chains of variable assignments that are hidden in the following text, and "
    "follow them.",
    "The text below assigns values to variables. Keep track of them.",
    "Read this and remember which variables have the same value.",
)
TRACKING_QUESTIONS = (
    (
        "Question: Which variables are assigned the value {value} in the text above?",
        "Answer: Following the chains of assignments, {count} variables have the value {value}: "
        "they are",
    ),
    ("Find all variables whose value is {value}.", "The variables with the value {value} are"),
    ("Question: Which variables equal {value}?", "Answer: The variables are"),
)
COMMON = (
    "Below is a numbered list of words. Some of them appear more often than the others. "
    "Memorize those that appear most often.",
    "Here is a list of words. Count how often each appears and remember the most common ones.",
    "Remember the words that this numbered list repeats most.",
)
COMMON_QUESTIONS = (
    (
        "Question: What are the {count} most common words in the list above?",
        "Answer: The {count} words that appear most often in the list are:",
    ),
    ("Which {count} words are repeated most?", "The {count} most common words are:"),
    ("Name the {count} words that the list repeats most often.", "The words are:"),
)
FREQUENT = (
    "Read the coded text below and keep track of how often each coded word appears. Find the "
    "three most frequent coded words.",
    "The following text is in code. Count its words.",
    "Here is a text of coded words. Remember the ones that appear most often.",
)
FREQUENT_QUESTIONS = (
    (
        "Question: Give no explanation and ignore the dots '....'. What are the three most "
        "frequent words in the coded text above?",
        "Answer: The three words that appear most often in the coded text are:",
    ),
    ("Which three coded words appear most often?", "The three most frequent words are:"),
    ("Name the three most frequent words, without the dots.", "The words are:"),
)


def variable_tracking(prompt: Prompt, rng: random.Random, split: str, each: bool) -> list[Question]:
    """A chain of `HOPS` assignments in noise; with `each`, one to three chains, each asked for.

    `VAR A = 12345`, then `VAR B = VAR A` and so on: all of a chain's variables have its value.
    """
    prompt.add(wording(TRACKING, split, rng))
    chains = rng.randint(1, max(1, min(3, prompt.room // 150))) if each else 1
    names = draw_distinct("symbol", chains * (HOPS + 1), split, rng)
    values = draw_distinct("digits5", chains, split, rng)
    first, rest = wording(ASSIGNMENTS, split, rng)
    lines, members = [], []
    for value in values:
        own = [names.pop() for _ in range(HOPS + 1)]
        chain = [first.format(name=own[0], value=value)]
        chain += [rest.format(name=b, other=a) for a, b in pairwise(own)]
        lines.append(["\n" + line for line in chain])
        members.append(own)
    hay = haystack("noise", {}, split, 6 * prompt.tokens, rng)
    hay[0] = "\n\n" + hay[0]
    prompt.add_haystack(hay, _interleave(lines, rng), rng)
    questions = []
    for value, own in zip(values, members, strict=True):
        text, lead = wording(TRACKING_QUESTIONS, split, rng)
        slots = {"value": value, "count": len(own)}
        questions.append(
            Question(text.format(**slots), lead.format(**slots), ", ".join(own), tuple(own))
        )
    return questions


def common_words(prompt: Prompt, rng: random.Random, split: str) -> list[Question]:
    """A numbered list in which 10 words appear 30 times each and all others 3 times.

    Below 4,096 tokens both numbers shrink with the length.
    """
    prompt.add(wording(COMMON, split, rng) + "\n")
    known = words(split)
    vocabulary = rng.sample(known, len(known))
    common = [vocabulary.pop() for _ in range(10)]

    def size(word: str, count: int, start: int) -> int:
        numbers = sum(prompt.size(f" {start + i}.") for i in range(count))
        return numbers + count * prompt.size(f" {word}")

    often = max(3, min(30, round(30 * prompt.tokens / 4096)))
    while True:
        entries = [word for word in common for _ in range(often)]
        used = sum(size(word, 1, i) for i, word in enumerate(entries, start=1))
        if used <= prompt.room or often == 2:
            break
        often -= 1
    seldom = max(1, round(often / 10))
    while True:
        # More words than there are: compounds of two.
        word = vocabulary.pop() if vocabulary else "-".join(rng.sample(known, 2))
        used += size(word, seldom, len(entries) + 1)
        if used > prompt.room:
            break
        entries += [word] * seldom
    rng.shuffle(entries)
    for i, word in enumerate(entries, start=1):
        prompt.add(f" {i}.")
        prompt.add(f" {word}", mark=word in common)
    text, lead = wording(COMMON_QUESTIONS, split, rng)
    answer = ", ".join(common)
    return [Question(text.format(count=10), lead.format(count=10), answer, tuple(common))]


def frequent_words(prompt: Prompt, rng: random.Random, split: str) -> list[Question]:
    """Coded words whose counts follow a zeta distribution, count(k) = n / (k^2 zeta(2)).

    The most frequent "word" is a row of dots, to be ignored; the next three are asked for. Words
    that would appear as often as the third are left out, so that the answer is unique.
    """
    prompt.add(wording(FREQUENT, split, rng) + "\n")

    def counts(n: int) -> list[int]:
        found: list[int] = []
        while (count := int(n / ((len(found) + 1) ** 2 * ZETA_2))) > 0:
            found.append(count)
        return found[:4] + [count for count in found[4:] if count < found[3]]

    coded = draw_distinct("coded", 50 + 2 * math.isqrt(prompt.tokens), split, rng)
    kinds = [DOTS, *coded]
    sizes = [prompt.size(f" {kind}") for kind in kinds]

    def used(n: int) -> int:
        return sum(c * s for c, s in zip(counts(n), sizes, strict=False))

    # The largest n that fits, by bisection: a word takes a token at least, and rounding down and
    # ties leave out some of the n words.
    low, high = 0, 2 * prompt.room
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if used(middle) <= prompt.room else (low, middle)
    found = counts(low)
    if len(found) < 4 or len(set(found[:4])) < 4:
        prompt.refuse()
    entries = [i for i, count in enumerate(found) for _ in range(count)]
    rng.shuffle(entries)
    for i in entries:
        prompt.add(f" {kinds[i]}", mark=1 <= i <= 3)
    text, lead = wording(FREQUENT_QUESTIONS, split, rng)
    answer = coded[:3]
    return [Question(text, lead, ", ".join(answer), tuple(answer))]


def _interleave(lists: Sequence[Sequence[str]], rng: random.Random) -> list[str]:
    """All items in a random order that keeps the order of each list."""
    turns = [i for i, items in enumerate(lists) for _ in items]
    rng.shuffle(turns)
    rest = [iter(items) for items in lists]
    return [next(rest[i]) for i in turns]
