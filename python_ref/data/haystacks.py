"""Text that hides things: noise, or running text of a source."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from python_ref.data.sources import Text, passage

# The first is the haystack of RULER's single-needle task.
NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "Birds were singing. The road went on. Nobody was in a hurry. It was a day like any other.",
    "Nothing happened. Everyone waited. The wind was mild. Some time went by. Then it was quiet.",
    "The room was empty. A door stood open. The light was on. No one came in. No one went out.",
    "The rain fell on the roof. The street was wet. A car passed by. The lamp was lit. We slept.",
)


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
    return sentences(text)


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with the white space that precedes it."""
    return re.findall(r"\s*\S.*?(?:[.!?][\"\u201d')]*(?=\s)|(?=\n)|$)", text.strip())
