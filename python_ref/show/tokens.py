"""The text of each single token, such that all of them together are the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONTEXT = 4  # tokens before, since some tokenizers drop a space at the start of what they decode
_UNFINISHED = "\ufffd"


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Texts of the tokens `ids`.

    Where several tokens make up one character the last of them has it, and the others are "".
    """
    texts: list[str] = []
    start = 0  # of the character that is not complete
    for i in range(len(ids)):
        before = list(ids[max(0, start - _CONTEXT) : start])
        known = _decode(tokenizer, before)
        text = _decode(tokenizer, [*before, *ids[start : i + 1]])
        text = text[len(known) :] if text.startswith(known) else _decode(tokenizer, [ids[i]])
        # A character has at most four bytes, so at most four tokens.
        unfinished = text.endswith(_UNFINISHED) and i - start < 3 and i + 1 < len(ids)
        texts.append("" if unfinished else text)
        if not unfinished:
            start = i + 1
    return texts


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )
