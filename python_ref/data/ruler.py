"""The thirteen tasks of RULER, written from its definition (Hsieh et al., 2024, arXiv 2404.06654).

    niah_single_1..3     one needle: a number in noise, a number in essays, a UUID in essays
    niah_multikey_1..3   needles with other keys beside it: 4 in essays; nothing but needles; UUIDs
    niah_multivalue      one key with 4 values
    niah_multiquery      4 keys, all asked for
    vt                   variable tracking: a chain of 4 assignments in noise
    cwe, fwe             the most common words of a list; the most frequent words of a coded text
    qa_1, qa_2           questions about one of many passages (SQuAD), about two (HotpotQA)

Needles have the benchmark's wording; instructions and questions say the same as the benchmark's
in our words. The keys, values, words and haystacks of the splits are disjoint. Development and
test documents have one wording, training documents several, and may be chats. No worked example
precedes variable tracking and common words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from python_ref.data import ruler_lists, ruler_needles, ruler_qa
from python_ref.data.document import Document
from python_ref.data.prompts import Prompt
from python_ref.data.ruler_qa import Passages
from python_ref.data.sources import Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TASKS = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
)


def document(
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    rng: random.Random,
    tokens: int,
    split: str,
    *,
    texts: Mapping[str, Sequence[Text]],
    branches: Literal["one", "each"] = "one",
    chat: bool = False,
    passages: Passages | None = None,
) -> Document:
    """A document of a task whose context has at most `tokens` tokens, and hardly fewer.

    A list ends with a whole entry, so a context of long entries may lack up to one.

    Args:
        task: one of `TASKS`.
        tokenizer: of the model that will read it.
        rng: decides everything.
        tokens: of the context; the question follows it.
        split: whose keys, values, words and haystacks to use.
        texts: haystacks; the tasks in essays use the texts under "essay".
        branches: "one" asks the benchmark's question; "each" asks for every needle of the
            context, or for several where there are many, in branches of their own.
        chat: the context begins a user's message in the tokenizer's chat format.
        passages: what the qa tasks ask about; by default made-up passages.

    Raises:
        ValueError: the task is unknown, or `tokens` are too few for it.
    """
    if task not in TASKS:
        raise ValueError(f"task: {task!r}, expected one of {', '.join(TASKS)}")
    prompt = Prompt(tokenizer, tokens, chat)
    each = branches == "each"
    if task.startswith("niah"):
        questions = ruler_needles.write(prompt, task, rng, split, texts, each)
    elif task == "vt":
        questions = ruler_lists.variable_tracking(prompt, rng, split, each)
    elif task == "cwe":
        questions = ruler_lists.common_words(prompt, rng, split)
    elif task == "fwe":
        questions = ruler_lists.frequent_words(prompt, rng, split)
    else:
        hops = 1 if task == "qa_1" else 2
        source = passages or ruler_qa.made_up(hops, tokens, split, rng)
        questions = ruler_qa.write(prompt, source, rng, split, each)
    metric = "string_match_any" if task.startswith("qa") else "string_match"
    return prompt.document(f"ruler/{task}", questions, metric)
