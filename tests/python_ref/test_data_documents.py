import collections
import random

import pytest
from tiny_tokenizers import CharacterTokenizer, byte_level, metaspace

from python_ref.data.documents import (
    haystack,
    needle_document,
    plain_document,
)
from python_ref.data.facts import (
    TEMPLATES,
    VOCABULARY,
    Template,
    draw,
    instantiate,
    templates,
)
from python_ref.data.prompts import Prompt, Question
from python_ref.data.sources import Text, split_of
from python_ref.data.tokens import beginning, encode
from python_ref.data.vocabulary import GENERATORS, draw_distinct

TOKENIZER = CharacterTokenizer()
TEXTS = {
    kind: [Text(kind, str(i), f"Text {i} of {kind}. It is short! " * 40) for i in range(60)]
    for kind in ("dialogue", "novel")
}


def test_there_are_many_templates_and_no_wording_or_word_in_two_splits():
    assert len(templates("train")) >= 90
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


def test_most_questions_repeat_the_words_of_the_fact():
    template = Template(
        "train", "name", "city",
        ("In {value} lives {key}.", "The home of {key} is {value}.", "{key} lives in {value}."),
        ("{key} lives in", "The home of {key} is", "Where is {key}? Around"),
    )  # fmt: skip
    facts = [instantiate(template, random.Random(seed)) for seed in range(600)]
    asked = collections.Counter(
        tuple(text.replace(fact.key, "").split()[0] for text in (fact.statement, fact.question))
        for fact in facts
    )
    for wording in ("The", "lives"):  # of 200: 0.8, and a third of the rest
        assert 140 <= asked[wording, wording] <= 210
        assert sum(count for (stated, _), count in asked.items() if stated == wording) <= 240
        assert asked[wording, "Where"] >= 1
    for question in ("The", "lives", "Where"):  # no question repeats this one's words
        assert 40 <= asked["In", question] <= 95


@pytest.mark.parametrize("chat", [False, True])
def test_a_needle_document_marks_its_facts_and_asks_for_each(chat):
    rng = random.Random(3)
    sentences = haystack("novel", TEXTS, "train", 4000, rng)
    document = needle_document(
        TOKENIZER, "novel", sentences, templates("train")[:4], 2000, rng, chat=chat
    )
    text = TOKENIZER.decode(document.context)
    facts = [TOKENIZER.decode(document.context[a:b]).strip() for a, b in document.marked]
    assert 1980 <= len(document.context) <= 2000
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


def test_a_document_states_one_value_of_a_key():
    template = next(t for t in templates("train") if t.key == "day")
    for seed in range(5):
        rng = random.Random(seed)
        sentences = haystack("noise", {}, "train", 4000, rng)
        document = needle_document(TOKENIZER, "noise", sentences, [template] * 6, 3000, rng)
        text = TOKENIZER.decode(document.context)
        days = [day for day in VOCABULARY["day"]["train"] if day in text]
        assert len(days) == len(document.branches) == len(document.marked) > 1


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


def test_the_values_of_the_splits_are_disjoint():
    parts = {"pair", "dashed", "variable", "person", "colored", "key", "company", "title"}
    parts |= {"invented", "street", "email", "url", "foods", "names", "colors"}
    for kind in GENERATORS:
        drawn = {
            split: {draw(kind, split, random.Random(seed)) for seed in range(60)}
            for split in ("train", "dev", "test")
        }
        assert not drawn["train"] & (drawn["dev"] | drawn["test"])
        assert not drawn["dev"] & drawn["test"]
        if kind not in parts:  # which are made of words of the split
            assert all(split_of(value) == split for split in drawn for value in drawn[split])


def test_distinct_values_or_none():
    assert len(set(draw_distinct("digits2", 10, "test", random.Random(0)))) == 10
    with pytest.raises(ValueError, match=r"count: 100 different values of kind 'digits2', found"):
        draw_distinct("digits2", 100, "test", random.Random(0))


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_pieces_are_tokenized_as_in_the_whole(make):
    tokenizer = make()
    pieces = ["The quick brown fox", " jumps over 12345", "\n\nQuestion: What", " is the answer?"]
    ids = beginning(tokenizer) + [i for piece in pieces for i in encode(tokenizer, piece)]
    assert ids == tokenizer("".join(pieces)).input_ids
    assert encode(tokenizer, "") == []


def test_what_stands_before_a_text():
    assert beginning(byte_level()) == []
    assert beginning(metaspace()) == [metaspace().bos_token_id]
    document = plain_document(metaspace(), "novel", "The quick brown fox jumps.", 4, 2)
    assert document.context[0] == metaspace().bos_token_id


def test_a_prompt_holds_what_fits():
    prompt = Prompt(TOKENIZER, 20)
    prompt.add("Hello.")
    prompt.fill(" one two three four")
    assert TOKENIZER.decode(prompt.ids) == "Hello. one two three"
    with pytest.raises(ValueError, match="tokens: 20, expected at least 25 for this task"):
        prompt.add(" five")
    assert TOKENIZER.decode(prompt.ids) == "Hello. one two three"


def test_needles_keep_their_order_and_follow_whole_sentences():
    sentences = [f" Sentence {i}." for i in range(50)]
    for seed in range(10):
        prompt = Prompt(TOKENIZER, 300)
        prompt.add("Begin.")
        prompt.add_haystack(
            sentences, [" <a>", " <b>", " <c>"], random.Random(seed), marked=[True, False, True]
        )
        text = TOKENIZER.decode(prompt.ids)
        assert 285 <= len(text) <= 300
        spans = [TOKENIZER.decode(prompt.ids[a:b]) for a, b in prompt.marked]
        assert spans == [" <a>", " <c>"]
        assert text.index("<a>") < text.index("<b>") < text.index("<c>")
        bare = text.replace(" <a>", "").replace(" <b>", "").replace(" <c>", "")
        assert ("Begin." + "".join(sentences)).startswith(bare)
        assert all(before in ".>" for before in (text[text.index(f" <{x}") - 1] for x in "abc"))


@pytest.mark.parametrize("chat", [False, True])
def test_questions_follow_the_context(chat):
    prompt = Prompt(TOKENIZER, 100, chat)
    prompt.add("The text.")
    questions = [Question("What?", "It is", "this", ("this", "that")), Question("Who is", "", "I")]
    document = prompt.document("kind", questions, "string_match")
    asked = [TOKENIZER.decode(branch.question) for branch in document.branches]
    answers = [TOKENIZER.decode(branch.ids[-branch.answer :]) for branch in document.branches]
    if chat:
        assert TOKENIZER.decode(document.context) == "<user>The text."
        assert asked == ["\n\nWhat?</user><assistant>It is", "\n\nWho is</user><assistant>"]
        assert answers == [" this", "I"]
    else:
        assert TOKENIZER.decode(document.context) == "The text."
        assert asked == ["\n\nWhat? It is", "\n\nWho is"]
        assert answers == [" this", " I"]
    assert [branch.references for branch in document.branches] == [("this", "that"), ()]


@pytest.mark.model
def test_a_value_has_the_same_tokens_in_the_fact_and_in_the_answer():
    from kvp_ext.integrations import smollm2

    tokenizer = smollm2.load_tokenizer()
    for template in TEMPLATES:
        for seed in range(2):
            fact = instantiate(template, random.Random(seed))
            stated = encode(tokenizer, " " + fact.statement)
            answer = encode(tokenizer, " " + fact.value)
            assert any(stated[i : i + len(answer)] == answer for i in range(len(stated))), fact
