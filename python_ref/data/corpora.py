"""The user's own texts and chats: JSONL or plain text, and documents made of them.

A line of JSONL holds a `text`, or a chat: `messages`, a list of {role, content}, or a message
tree as OASST publishes them (`prompt` with ranked `replies`), of which the best-ranked path is the
chat. A file that does not end in .jsonl is plain text. The lines of a file belong to the splits in
turns; a plain text is divided into pieces for that.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from python_ref.data.document import Branch, Document
from python_ref.data.sources import split_at
from python_ref.data.tokens import beginning, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PIECE = 8000  # characters; a document may begin with any piece of a long text
MOST_CONTINUATION = 300


@dataclass(frozen=True)
class Item:
    """One text or chat of a file.

    Attributes:
        place: where it stands, for messages: "chats.jsonl, line 3".
        split: that it belongs to.
        text: empty for a chat.
        messages: (role, content) of each turn; empty for a text.
    """

    place: str
    split: str
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()


def read(path: Path) -> list[Item]:
    """All items of a file; a long text is several.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file or a line is empty, or a line is not of a known form; the message
            names the file and the line.
    """
    if path.suffix == ".jsonl":
        items = [_item(place, i, line) for i, (place, line) in enumerate(read_jsonl(path))]
        return [
            replace(item, text=piece) if piece else item
            for item in items
            for piece in _pieces(item.text, PIECE) or [""]
        ]
    text = read_text(path)
    return [
        Item(f"{path}, piece {i + 1}", split_at(i), text=piece)
        for i, piece in enumerate(_pieces(text, min(PIECE, len(text) // 5)))
    ]


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object of each line, with its place for messages.

    Raises:
        FileNotFoundError, ValueError: as `read`.
    """
    # Not splitlines: JSON may hold other line separators, such as U+2028.
    for number, line in enumerate(read_text(path).rstrip("\n").split("\n"), start=1):
        place = f"{path}, line {number}"
        if not line.strip():
            raise ValueError(f"{place}: an empty line, expected a JSON object")
        try:
            item = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{place}: not JSON ({error}), expected a JSON object") from error
        if not isinstance(item, dict):
            raise ValueError(f"{place}: got {type(item).__name__}, expected a JSON object")
        yield place, item


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; errors as `read`."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error})") from error
    if not text.strip():
        raise ValueError(f"{path}: no text in the file")
    return text


def entry(place: str, item: dict[str, Any], key: str, *types: type) -> Any:
    """`item[key]`; raises ValueError that names `place` if it is missing or of another type."""
    if key not in item:
        raise ValueError(f"{place}: no `{key}`, but {', '.join(map(repr, item)) or 'nothing'}")
    if not isinstance(item[key], types):
        names = " or ".join(t.__name__ for t in types)
        raise ValueError(f"{place}: `{key}`: got {type(item[key]).__name__}, expected {names}")
    return item[key]


def document(
    tokenizer: PreTrainedTokenizerBase,
    kind: str,
    items: Sequence[Item],
    rng: random.Random,
    tokens: int,
    continuation: int | None = None,
) -> Document:
    """Running text with its own continuation, from a random item on.

    Items follow one another until there is enough text, from the first again after the last. The
    context of chats ends where a turn ends, so it may be shorter than `tokens`; a turn that is
    longer than half of `tokens` is divided. Chats are in the tokenizer's chat format if it has one.

    Args:
        tokenizer: of the model that will read it.
        kind: of the document.
        items: of one file and split.
        rng: decides where to begin.
        tokens: at most in the context.
        continuation: tokens of the branch; by default 300, or half as many as `tokens` if fewer.

    Raises:
        ValueError: there are no items, or the chat format does not take the roles of a chat.
    """
    if not items:
        raise ValueError(f"{kind}: no text for this split, expected five texts or more in the file")
    future = continuation or min(MOST_CONTINUATION, max(1, tokens // 2))
    formatted = bool(items[0].messages) and tokenizer.chat_template is not None
    ids = [] if formatted else beginning(tokenizer)  # a chat format has its own beginning
    turns: list[int] = []  # where each ends
    i = rng.randrange(len(items))
    while len(ids) < tokens + future:
        before = len(ids)
        for part in _parts(tokenizer, items[i], first=not turns):
            ids += encode(tokenizer, part)
            turns.append(len(ids))
        if len(ids) == before:
            raise ValueError(f"{items[i].place}: no tokens in the text")
        i = (i + 1) % len(items)
    fitting = [end for end in turns if tokens // 2 <= end <= tokens]
    context = fitting[-1] if items[0].messages and fitting else tokens
    branch = Branch(tuple(ids[context : context + future]), future)
    return Document(kind, tuple(ids[:context]), (branch,), metric="perplexity")


def _parts(tokenizer: PreTrainedTokenizerBase, item: Item, *, first: bool) -> list[str]:
    """The text of an item in turns."""
    if item.text:
        return [item.text if first else "\n\n" + item.text]
    if tokenizer.chat_template is None:
        lines = [f"{role}: {content}" for role, content in item.messages]
        return [line if first and i == 0 else "\n" + line for i, line in enumerate(lines)]
    messages = [{"role": role, "content": content} for role, content in item.messages]
    texts = [""]
    for count in range(1, len(messages) + 1):
        try:
            text = str(tokenizer.apply_chat_template(messages[:count], tokenize=False))
        except Exception as error:
            raise ValueError(
                f"{item.place}: the tokenizer's chat format does not take this chat ({error})"
            ) from error
        # A format may drop what earlier turns thought, or close the last turn in its own way.
        if not text.startswith(texts[-1]):
            texts = [""]
        texts.append(text)
    turns = [text[len(before) :] for before, text in pairwise(texts)]
    if not first and tokenizer.bos_token:
        turns[0] = turns[0].removeprefix(str(tokenizer.bos_token))
    return turns


def _item(place: str, index: int, item: dict[str, Any]) -> Item:
    split = split_at(index)
    if "text" in item:
        text = entry(place, item, "text", str)
        if not text.strip():
            raise ValueError(f"{place}: `text` is empty")
        return Item(place, split, text=text)
    if "messages" in item:
        messages = entry(place, item, "messages", list)
        found = [_message(place, message, "content") for message in messages]
    elif "prompt" in item and isinstance(item["prompt"], dict):
        found = list(_best_path(place, item["prompt"]))
    else:
        raise ValueError(
            f"{place}: expected `text`, `messages` or a message tree, "
            f"but found {', '.join(map(repr, item)) or 'nothing'}"
        )
    if not found:
        raise ValueError(f"{place}: `messages` is empty")
    return Item(place, split, messages=tuple(found))


def _message(place: str, message: Any, key: str) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise ValueError(
            f"{place}: message: got {type(message).__name__}, expected {{role, {key}}}"
        )
    return entry(place, message, "role", str), entry(place, message, key, str)


def _best_path(place: str, message: Any) -> Iterator[tuple[str, str]]:
    """The messages from the root on, each followed by the reply of the lowest rank."""
    while True:
        role, text = _message(place, message, "text")
        yield {"prompter": "user"}.get(role, role), text
        replies = message.get("replies") or []
        if not replies:
            return
        ranked = [reply for reply in replies if reply.get("rank") is not None]
        message = min(ranked, key=lambda reply: int(reply["rank"])) if ranked else replies[0]


def _pieces(text: str, size: int) -> list[str]:
    """A text in pieces of at least `size` characters, divided between paragraphs or lines."""
    pieces, piece = [], ""
    for part in re.split(r"(?<=\n\n)" if text.count("\n\n") >= 5 else r"(?<=\n)", text):
        piece += part
        if len(piece) >= size:
            pieces.append(piece.strip())
            piece = ""
    return [part for part in [*pieces, piece.strip()] if part]
