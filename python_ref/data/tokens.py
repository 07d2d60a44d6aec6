"""Texts to token ids, for any tokenizer of transformers.

A document is put together from pieces that are tokenized apart, so that it is known which tokens
hold what. Most tokenizers start a new word at white space, so the pieces, each of which begins
with its white space, get the tokens that they would get in the whole text.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANCHOR = "a"


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a piece of text, without special tokens.

    A piece that begins with white space is tokenized as it would be after a word: SentencePiece
    would otherwise put another space before it.
    """
    if not text:
        return []
    if not text[0].isspace():
        return _plain(tokenizer, text)
    anchor = _anchor(tokenizer)
    both = _plain(tokenizer, _ANCHOR + text)
    if both[: len(anchor)] == anchor:
        return both[len(anchor) :]
    return _plain(tokenizer, text)


def beginning(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The special tokens that this tokenizer puts before a text, such as BOS; often none."""
    plain = _anchor(tokenizer)
    full = list(tokenizer(_ANCHOR, add_special_tokens=True).input_ids)
    for start in range(len(full)):
        if full[start : start + len(plain)] == plain:
            return full[:start]
    return []


def chat_format(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What precedes a user's message and what stands between it and the assistant's answer."""
    marker = "\ufffc"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": marker}], tokenize=False, add_generation_prompt=True
    )
    before, _, after = str(text).partition(marker)
    return before, after


@functools.lru_cache(maxsize=8)
def _anchor(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return _plain(tokenizer, _ANCHOR)


def _plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)
