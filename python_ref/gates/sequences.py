"""Documents as training sequences: a context and what may follow it, one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from python_ref.data.document import Document


def sequence(document: Document, tokens: int, rng: random.Random) -> tuple[int, ...]:
    """The context, then the document's branches in random order, cut after `tokens`.

    Every branch asks for something else in the context, so a token is needed again and again,
    and a sequence teaches more than one question. The tokens of a sequence are their own targets.
    """
    ids = list(document.context)
    branches = list(document.branches)
    rng.shuffle(branches)
    for branch in branches:
        ids += branch.ids
    return tuple(ids[:tokens])


def sequences(
    documents: Iterable[Document], tokens: int, seed: int = 0
) -> Iterator[tuple[int, ...]]:
    """The sequence of each document, of at most `tokens` tokens; see `sequence`."""
    for i, document in enumerate(documents):
        yield sequence(document, tokens, random.Random(f"{seed}/{i}"))
