"""Putting a document together: a context of a wanted length, then questions about it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar

from python_ref.data.document import Branch, Document
from python_ref.data.tokens import beginning, chat_format, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


def wording(options: Sequence[T], split: str, rng: random.Random) -> T:
    """One of several ways to say something: any in training, else the first."""
    return rng.choice(options) if split == "train" else options[0]


@dataclass(frozen=True)
class Question:
    """A question that follows a context.

    Attributes:
        text: what is asked.
        lead: how the answer begins; given to the model.
        answer: how the answer goes on, without the space before it.
        references: what a generated answer is compared with; by default the answer itself.
    """

    text: str
    lead: str
    answer: str
    references: tuple[str, ...] = ()


@dataclass
class Prompt:
    """A context under construction, and how its questions will follow.

    With `chat` the context is the beginning of a user's message in the tokenizer's chat format;
    a question ends that message and the assistant answers. Otherwise all is plain text.

    Attributes:
        tokens: the most that the context may take.
        ids: the context so far, special tokens included.
        marked: token ranges [start, stop) of `ids` that hold what is asked for.
    """

    tokenizer: PreTrainedTokenizerBase
    tokens: int
    chat: bool = False
    ids: list[int] = field(default_factory=list)
    marked: list[tuple[int, int]] = field(default_factory=list)
    _between: str = ""
    _known: dict[str, list[int]] = field(default_factory=dict)  # lists repeat their words

    def __post_init__(self) -> None:
        if self.chat:
            before, self._between = chat_format(self.tokenizer)
            self.ids += encode(self.tokenizer, before)
        else:
            self.ids += beginning(self.tokenizer)

    @property
    def room(self) -> int:
        """How many tokens still fit."""
        return self.tokens - len(self.ids)

    def size(self, text: str) -> int:
        """How many tokens `text` takes."""
        return len(self._encode(text))

    def add(self, text: str, *, mark: bool = False) -> None:
        """Appends `text`; marked if it holds what is asked for.

        Raises:
            ValueError: it does not fit; nothing is appended.
        """
        self._append(self._encode(text), mark)

    def add_haystack(
        self,
        sentences: Sequence[str],
        needles: Sequence[str],
        rng: random.Random,
        *,
        marked: Sequence[bool] | None = None,
    ) -> None:
        """Appends as many sentences as fit around `needles`, which are spread at random.

        The needles keep their order; each follows a whole sentence. The last sentence is cut
        after a word, so that the context has almost exactly `tokens` tokens.

        Args:
            sentences: each with the white space that precedes it.
            needles: likewise.
            rng: chooses the places.
            marked: which needles are asked for; by default all.
        """
        hidden = [encode(self.tokenizer, needle) for needle in needles]
        room = self.room - sum(map(len, hidden))
        hay: list[list[int]] = []
        for sentence in sentences:
            piece = self._encode(sentence)
            cut = len(piece) > room
            if cut:
                piece = self._words_within(sentence, room)
            if piece:
                hay.append(piece)
                room -= len(piece)
            if cut:
                break
        if room < 0 or not hay:
            self.refuse(len(self.ids) + sum(map(len, hidden)) + 1)
        # A cut sentence is the last thing that a context holds, unless nothing precedes it.
        places = sorted(rng.randrange(1, max(2, len(hay))) for _ in hidden)
        marks = marked if marked is not None else [True] * len(hidden)
        for i, piece in enumerate(hay, start=1):
            self._append(piece, False)
            for place, needle, mark in zip(places, hidden, marks, strict=True):
                if place == i:
                    self._append(needle, mark)

    def fill(self, text: str) -> bool:
        """Appends as many words of `text` as fit; whether that is all of it."""
        words = re.findall(r"\s*\S+", text)
        for word in words:
            if self.size(word) > self.room:
                return False
            self.add(word)
        return True

    def add_ends(self, text: str) -> None:
        """Appends `text`, without its middle if it does not fit, as LongBench truncates."""
        ids = encode(self.tokenizer, text)
        if len(ids) > self.room:
            half = self.room // 2
            ids = ids[:half] + ids[len(ids) - (self.room - half) :]
        self._append(ids, False)

    def document(self, kind: str, questions: Sequence[Question], metric: str) -> Document:
        """The finished document; every question is a branch."""
        branches = []
        for question in questions:
            asked = "\n\n" + question.text
            if self.chat:
                asked += self._between + question.lead
            elif question.lead:
                asked += " " + question.lead
            # An answer without a lead is the first thing that an assistant says.
            space = "" if self.chat and not question.lead else " "
            answer = encode(self.tokenizer, space + question.answer)
            ids = encode(self.tokenizer, asked) + answer
            branches.append(Branch(tuple(ids), len(answer), references=question.references))
        return Document(kind, tuple(self.ids), tuple(branches), tuple(self.marked), metric)

    def refuse(self, needed: int | None = None) -> NoReturn:
        """Raises the ValueError that says that the context is too short for its task."""
        least = "more" if needed is None else f"at least {needed}"
        raise ValueError(f"tokens: {self.tokens}, expected {least} for this task")

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = encode(self.tokenizer, text)
        return self._known[text]

    def _append(self, ids: list[int], mark: bool) -> None:
        if len(ids) > self.room:
            self.refuse(len(self.ids) + len(ids))
        if mark:
            self.marked.append((len(self.ids), len(self.ids) + len(ids)))
        self.ids += ids

    def _words_within(self, text: str, room: int) -> list[int]:
        ids: list[int] = []
        for word in re.findall(r"\s*\S+", text):
            piece = self._encode(word)
            if len(ids) + len(piece) > room:
                break
            ids += piece
        return ids
