import random
from types import SimpleNamespace

import pytest

from python_ref.data.documents import (
    haystack,
    needle_document,
    plain_document,
    training_documents,
)
from python_ref.data.facts import TEMPLATES, VOCABULARY, instantiate, templates
from python_ref.data.sources import Text


class CharacterTokenizer:
    """One token a character."""

    chat_template = "yes"

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return SimpleNamespace(input_ids=[ord(character) for character in text])

    def decode(self, ids):
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return f"<user>{messages[0]['content']}</user><assistant>"


TOKENIZER = CharacterTokenizer()
TEXTS = {
    kind: [Text(kind, str(i), f"Text {i} of {kind}. It is short! " * 40) for i in range(60)]
    for kind in ("dialogue", "novel")
}


def test_there_are_many_templates_and_no_wording_or_word_in_two_splits():
    assert len(templates("train")) >= 25
    assert len(templates("dev")) >= 5
    assert len(templates("test")) >= 5
    for kind, parts in VOCABULARY.items():
        if kind not in ("day", "month"):
            assert not set(parts["train"]) & {*parts["dev"], *parts["test"]}
        assert all(parts.values())
    wordings = {
        split: {w for t in templates(split) for w in (*t.facts, *t.questions)}
        for split in ("train", "dev", "test")
    }
    assert not wordings["train"] & (wordings["dev"] | wordings["test"])
    assert not wordings["dev"] & wordings["test"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.facts[0][:30])
def test_a_fact_states_its_value_and_the_question_does_not(template):
    for seed in range(8):
        fact = instantiate(template, random.Random(seed))
        assert fact.value in fact.statement
        assert fact.value not in fact.question
        assert "{" not in (fact.statement + fact.question).replace('"', "")


@pytest.mark.parametrize("chat", [False, True])
def test_a_needle_document_marks_its_facts_and_asks_for_each(chat):
    rng = random.Random(3)
    sentences = haystack("novel", TEXTS, "train", 4000, rng)
    document = needle_document(
        TOKENIZER, "novel", sentences, templates("train")[:4], 2000, rng, chat=chat
    )
    text = TOKENIZER.decode(document.context)
    facts = [TOKENIZER.decode(document.context[a:b]).strip() for a, b in document.marked]
    assert len(document.context) == pytest.approx(2000, abs=100)
    assert len(facts) == len(document.branches) == 4
    answers = []
    for branch in document.branches:
        answer = TOKENIZER.decode(branch.ids[-branch.answer :])
        question = TOKENIZER.decode(branch.ids[: -branch.answer])
        answers.append(answer.strip())
        assert question.startswith("\n\n")
        assert question.endswith("</user><assistant>") == chat
        assert answer.startswith(" ") != chat
    # Every fact answers one question, and the haystack is what remains.
    assert sum(any(answer in fact for answer in answers) for fact in facts) == 4
    assert text.startswith("<user>Text") == chat
    for fact in facts:
        text = text.replace(fact, "")
    assert not any(answer in text for answer in answers if len(answer) > 4)


def test_a_haystack_is_of_its_split_and_loses_nothing():
    for split in ("train", "dev"):
        joined = "".join(haystack("dialogue", TEXTS, split, 3000, random.Random(1)))
        assert len(joined) >= 3000
        numbers = {part.split()[0] for part in joined.split("Text ")[1:]}
        own = {text.name for text in TEXTS["dialogue"] if text.split == split}
        assert numbers <= own
    noise = [set(haystack("noise", {}, s, 500, random.Random(0))) for s in ("dev", "test")]
    assert not noise[0] & noise[1]


def test_a_plain_document_continues_itself():
    document = plain_document(TOKENIZER, "novel", "abcdefgh", 5, 2)
    assert TOKENIZER.decode(document.context) == "abcde"
    assert TOKENIZER.decode(document.branches[0].ids) == "fg"
    assert document.branches[0].answer == 2
    with pytest.raises(ValueError, match=r"8 tokens, expected 9"):
        plain_document(TOKENIZER, "novel", "abcdefgh", 5, 4)


def test_training_documents_repeat_with_their_seed():
    def make(seed):
        return training_documents(
            TOKENIZER, TEXTS, templates("train"), needles=12, plain=6, seed=seed
        )

    documents = make(0)
    assert documents == make(0)
    assert documents != make(1)
    lengths = [len(document.context) for document in documents]
    assert min(lengths) >= 200
    assert 1000 <= max(lengths) <= 2200
    assert [bool(document.marked) for document in documents] == [True] * 12 + [False] * 6
    assert all(len(document.branches) == len(document.marked) for document in documents[:12])
