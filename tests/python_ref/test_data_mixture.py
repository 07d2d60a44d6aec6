import collections
import json
import re

import pytest
from tiny_tokenizers import CHATML, CharacterTokenizer, byte_level

from python_ref.data import mixture, ruler
from python_ref.data.document import Branch, Document
from python_ref.data.sources import Text, split_of

TOKENIZER = byte_level(CHATML)
MAGIC = re.compile(r"special magic numbers? for ([A-Z][a-z]+(?: [A-Z][a-z]+)?) is")


@pytest.fixture(autouse=True)
def texts(monkeypatch):
    """Stand-ins for the texts that come from package registries."""

    def make(kind):
        return [Text(kind, str(i), f"Text {i} of {kind}. It is short! " * 30) for i in range(40)]

    monkeypatch.setattr(mixture, "_texts", make)


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.jsonl"
    messages = [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi"}]
    path.write_text((json.dumps({"messages": messages}) + "\n") * 8)
    return path


def test_every_built_in_source_makes_documents():
    makers = mixture.makers()
    assert set(makers) == {
        *(f"ruler/{task}" for task in ruler.TASKS), "needles", "needles/seen",
        "dialogue", "novel", "essay",
    }  # fmt: skip
    for name in makers:
        for split in ("train", "test"):
            (document,) = mixture.documents(
                TOKENIZER, {name: 1.0}, 1, lengths=(1200, 1200), split=split
            )
            assert document.kind == name.removesuffix("/seen")
            assert 1050 <= len(document.context) <= 1200
            assert all(0 < branch.answer <= len(branch.ids) for branch in document.branches)
            asked = name.startswith(("ruler", "needles"))
            assert bool(document.marked) == asked
            assert (document.metric == "perplexity") != asked


def test_seen_wordings_come_with_keys_and_values_of_the_split():
    def numbers(name, split):
        """The places of the special magic numbers: a wording of training."""
        made = mixture.documents(
            TOKENIZER, {name: 1.0}, 150, lengths=(400, 400), split=split, seed=1
        )
        texts = [TOKENIZER.decode(document.context) for document in made]
        return {place for text in texts for place in MAGIC.findall(text)}

    assert not numbers("needles", "dev")
    for split in ("dev", "test"):
        seen = numbers("needles/seen", split)
        assert seen
        assert {split_of(place) for place in seen} == {split}


def test_a_document_depends_on_its_number_and_the_seed_only():
    sources = {"needles": 1.0, "essay": 1.0, "ruler/vt": 1.0}

    def make(count, seed=0, split="train"):
        return list(
            mixture.documents(TOKENIZER, sources, count, lengths=(300, 600), seed=seed, split=split)
        )

    assert make(4) == make(9)[:4]
    assert make(4) != make(4, seed=1)
    assert make(4) != make(4, split="dev")


def test_weights_and_lengths_are_followed():
    sources = {"essay": 3.0, "novel": 1.0}
    made = list(mixture.documents(CharacterTokenizer(), sources, 400, lengths=(100, 1600)))
    counts = collections.Counter(document.kind for document in made)
    assert counts["essay"] / 400 == pytest.approx(0.75, abs=0.07)
    lengths = sorted(len(document.context) for document in made)
    assert lengths[0] >= 100
    assert lengths[-1] <= 1600
    # Log-uniform: the middle is the geometric mean.
    assert lengths[200] == pytest.approx(400, rel=0.15)


def test_training_asks_in_several_ways_and_test_in_one():
    def branches(split):
        made = mixture.documents(
            TOKENIZER, {"ruler/niah_multikey_1": 1.0}, 24, lengths=(700, 700), split=split
        )
        made = list(made)
        chats = sum(TOKENIZER.decode(d.context[:8]).startswith("<|user|>") for d in made)
        return {len(document.branches) for document in made}, chats

    assert branches("test") == ({1}, 0)
    counts, chats = branches("train")
    assert counts == {4}
    assert 1 <= chats <= 14


def test_the_users_files_are_sources(chat, tmp_path):
    boolq = tmp_path / "boolq.jsonl"
    lines = [
        {"question": f"q{i}", "passage": f"Passage {i}.", "answer": i % 2 == 0} for i in range(6)
    ]
    boolq.write_text("\n".join(map(json.dumps, lines)))
    squad = tmp_path / "squad.json"
    qas = [{"question": "Where is it?", "answers": [{"text": "here", "answer_start": 6}]}]
    paragraph = {"context": "It is here. " * 2, "qas": qas}
    squad.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}))

    def make(path, count=1, **options):
        return list(mixture.documents(TOKENIZER, {str(path): 1.0}, count, **options))

    (document,) = make(chat, lengths=(300, 300))
    assert document.kind == "chat"
    assert TOKENIZER.decode(document.context).startswith("<|user|>Hello there<|end|>")
    # Every question once before any comes again, whatever the split.
    for split in ("train", "test"):
        contexts = {document.context for document in make(boolq, 6, split=split)}
        assert len(contexts) == 6
    (document,) = make(squad, split="test", lengths=(500, 500))
    assert document.kind == "ruler/qa_1"
    assert document.branches[0].references == ("here",)


def test_the_splits_of_a_users_file_are_disjoint(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("\n\n".join(f"Line {i} is here." for i in range(400)))

    def lines(split):
        text = "".join(
            TOKENIZER.decode(document.context)
            for document in mixture.documents(
                TOKENIZER, {str(path): 1.0}, 8, lengths=(400, 400), split=split
            )
        )
        return {word for word in text.split() if word.isdigit()}

    assert len(lines("train")) > 50
    assert not lines("train") & lines("test")
    assert not lines("dev") & lines("test")


def test_parse_sources():
    assert mixture.parse_sources(["ruler/vt=2", "chat.jsonl"]) == {
        "ruler/vt": 2.0,
        "chat.jsonl": 1.0,
    }
    every = mixture.parse_sources(["ruler=2.6"])
    assert set(every) == {f"ruler/{task}" for task in ruler.TASKS}
    assert list(every.values()) == pytest.approx([0.2] * 13)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["needles=much"], "needles=much: weight 'much', expected a number"),
        (["needles=0"], "needles: weight 0.0, expected a positive number"),
        (["needles=nan"], "needles: weight nan, expected a positive number"),
        (["needles", "needles=2"], "the source needles is given twice"),
    ],
)
def test_wrong_weights_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mixture.parse_sources(arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sources": {"nedles": 1.0}}, FileNotFoundError, "source 'nedles': not a file, and not"),
        ({"sources": {}}, ValueError, "sources: none"),
        ({"sources": {"needles": -1.0}}, ValueError, "needles: weight -1.0"),
        ({"split": "validation"}, ValueError, "split: 'validation', expected one of train, dev"),
        ({"lengths": (500, 400)}, ValueError, r"lengths: \(500, 400\), expected 1 <= least"),
        ({"count": -1}, ValueError, "count: -1, expected 0 or more"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, error, message):
    arguments = {"sources": {"needles": 1.0}, "count": 1, **arguments}
    with pytest.raises(error, match=message):
        mixture.documents(TOKENIZER, **arguments)


def test_a_malformed_file_is_refused_at_once(chat):
    chat.write_text(chat.read_text() + "{\n")
    with pytest.raises(ValueError, match=r"chat\.jsonl, line 9: not JSON"):
        mixture.documents(TOKENIZER, {str(chat): 1.0}, 1)


def test_the_question_moves_into_the_context():
    branches = (Branch((7, 8, 9), 1), Branch((4, 5, 6), 2, weight=3.0, references=("x",)))
    document = Document("kind", (1, 2, 3), branches, ((0, 1),), "string_match")
    inside = mixture.question_inside(document, 0)
    assert inside.context == (1, 2, 3, 7)
    assert inside.branches == (Branch((8, 9), 1),)
    inside = mixture.question_inside(document, 1)
    assert inside.context == (1, 2, 3)
    assert inside.branches == (Branch((4, 5, 6), 2, references=("x",)),)
    assert inside.marked == document.marked
    assert inside.metric == "string_match"


def test_a_continuation_has_no_question():
    document = Document("novel", (1, 2), (Branch((3, 4), 2),))
    with pytest.raises(ValueError, match="branch: 0 of a document of novel has no question"):
        mixture.question_inside(document, 0)


@pytest.mark.model
def test_the_mixture_for_the_real_tokenizer():
    from kvp_ext.integrations import smollm2

    tokenizer = smollm2.load_tokenizer()
    sources = mixture.parse_sources(["ruler", "needles=0.5", "dialogue=0.5"])
    made = list(mixture.documents(tokenizer, sources, 30))
    assert len({document.kind for document in made}) > 8
    assert all(130 <= len(document.context) <= 2000 for document in made)
    assert sum(tokenizer.decode(d.context[:4]).startswith("<|im_start|>") for d in made) >= 2
