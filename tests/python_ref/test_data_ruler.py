import collections
import random
import re

import pytest
from tiny_tokenizers import CharacterTokenizer, byte_level

from python_ref.data import ruler
from python_ref.data.haystacks import noise
from python_ref.data.ruler_qa import made_up
from python_ref.data.sources import Text, split_of
from python_ref.data.vocabulary import words

TOKENIZER = CharacterTokenizer()
ESSAYS = {
    "essay": [
        Text("essay", str(i), f"Essay {i} begins. It goes on, for a while! " * 30)
        for i in range(40)
    ]
}
NIAH = [task for task in ruler.TASKS if task.startswith("niah")]
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def make(task, seed=0, tokens=4000, split="test", tokenizer=TOKENIZER, **options):
    rng = random.Random(seed)
    return ruler.document(task, tokenizer, rng, tokens, split, texts=ESSAYS, **options)


def parts(document, tokenizer=TOKENIZER):
    """The context, and (question, answer) of each branch, as text."""
    asked = [
        (tokenizer.decode(b.question), tokenizer.decode(b.ids[-b.answer :]))
        for b in document.branches
    ]
    return tokenizer.decode(document.context), asked


def marked(document, tokenizer=TOKENIZER):
    return [tokenizer.decode(document.context[a:b]) for a, b in document.marked]


# What each task hides: keys, values per key, keys asked for, kind of value.
SHAPES = {
    "niah_single_1": (1, 1, 1, r"\d{7}"),
    "niah_single_2": (1, 1, 1, r"\d{7}"),
    "niah_single_3": (1, 1, 1, UUID),
    "niah_multikey_1": (4, 1, 1, r"\d{7}"),
    "niah_multikey_2": (None, 1, 1, r"\d{7}"),
    "niah_multikey_3": (None, 1, 1, UUID),
    "niah_multivalue": (1, 4, 1, r"\d{7}"),
    "niah_multiquery": (4, 1, 4, r"\d{7}"),
}


@pytest.mark.parametrize("task", NIAH)
def test_the_answer_to_a_needle_question_is_in_the_needles(task):
    keys, values, asked_keys, form = SHAPES[task]
    for seed in range(4):
        document = make(task, seed)
        context, [(question, answer)] = parts(document)
        found = collections.defaultdict(list)
        for key, value in re.findall(r"magic \w+s for (\S+) is: (\S+)\.", context):
            assert re.fullmatch(form, value)
            found[key].append(value)
        if keys is None:  # nothing but needles
            assert len(found) > (30 if task == "niah_multikey_2" else 20)
            assert all(line.startswith("One of the") for line in context.split("\n")[1:])
        else:
            assert len(found) == keys
        assert all(len(own) == values for own in found.values())
        wanted = [key for key in found if key in question]
        assert len(wanted) == asked_keys
        wanted.sort(key=question.index)
        expected = [value for key in wanted for value in found[key]]
        assert document.branches[0].references == tuple(expected)
        assert answer == " " + ", ".join(expected)
        # What is marked is exactly the needles that are asked for.
        needles = [needle.strip() for needle in marked(document)]
        assert sorted(needles) == sorted(
            f"One of the special magic {'uuid' if form == UUID else 'number'}s for {key} is: {v}."
            for key in wanted
            for v in found[key]
        )


@pytest.mark.parametrize("task", ["niah_multikey_1", "niah_multikey_2", "niah_multiquery"])
def test_each_needle_is_asked_for_in_a_branch_of_its_own(task):
    for seed in range(4):
        document = make(task, seed, split="train", branches="each", tokens=5000)
        context, asked = parts(document)
        assert len(asked) == (6 if task == "niah_multikey_2" else 4)
        assert len({branch.references for branch in document.branches}) == len(asked)
        assert len(document.marked) == len(asked)
        for needle in marked(document):
            assert sum(answer.strip() in needle for _, answer in asked) == 1
        for _, answer in asked:
            assert context.count(answer.strip()) == 1


def assignments(text):
    return re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text)


def test_variable_tracking_follows_the_assignments():
    for seed in range(4):
        document = make("vt", seed)
        context, [(question, answer)] = parts(document)
        value = {}
        for name, source in assignments(context):  # in the order of the text
            value[name] = value.get(source, source)
        assert len(value) == 5
        (number,) = set(value.values())
        assert re.fullmatch(r"\d{5}", number)
        assert number in question
        assert document.branches[0].references == tuple(value)
        assert answer == " " + ", ".join(value)
        assert [m.strip() for m in marked(document)] == [
            line for line in context.split("\n") if line.startswith("VAR")
        ] or len(marked(document)) == 5
        assert assignments("".join(marked(document))) == assignments(context)


def test_variable_tracking_in_training_asks_for_every_chain():
    chains = set()
    for seed in range(12):
        document = make("vt", seed, split="train", branches="each")
        text = "".join(marked(document))
        members = [branch.references for branch in document.branches]
        chains.add(len(members))
        names = [name for own in members for name in own]
        assert len(set(names)) == 5 * len(members) == len(document.marked)
        for own, branch in zip(members, document.branches, strict=True):
            number = re.search(r"\d{5}", TOKENIZER.decode(branch.question)).group()
            assert text.count(number) == 1
            # A name stands in the line that sets it and in the line that takes its value on.
            assert [text.count(name) for name in own] == [2, 2, 2, 2, 1]
    assert chains == {1, 2, 3}


@pytest.mark.parametrize(
    ("tokens", "often", "seldom"), [(1000, 7, 1), (2048, 15, 2), (4096, 30, 3)]
)
def test_common_words_are_the_ones_that_appear_most(tokens, often, seldom):
    tokenizer = byte_level()
    document = make("cwe", tokens=tokens, tokenizer=tokenizer)
    context, [(question, answer)] = parts(document, tokenizer)
    entries = re.findall(r"(\d+)\. (\S+)", context)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    counts = collections.Counter(word for _, word in entries)
    common = [word for word, count in counts.items() if count > seldom]
    assert len(common) == 10
    assert set(counts.values()) == {often, seldom}
    assert set(document.branches[0].references) == set(common)
    assert "10" in question
    assert answer == " " + ", ".join(document.branches[0].references)
    assert collections.Counter(m.strip() for m in marked(document, tokenizer)) == {
        word: counts[word] for word in common
    }


def test_frequent_words_follow_a_zeta_distribution():
    for seed in range(4):
        document = make("fwe", seed, tokens=6000)
        context, [(_, answer)] = parts(document)
        counts = collections.Counter(context.split("\n", 1)[1].split())
        (dots, first), *coded = counts.most_common()
        assert dots == "...."
        assert all(re.fullmatch("[a-z]{6}", word) for word, _ in coded)
        top = [word for word, _ in coded[:3]]
        assert document.branches[0].references == tuple(top)
        assert answer == " " + ", ".join(top)
        assert coded[3][1] < coded[2][1] < coded[1][1] < coded[0][1]
        # count(k) is proportional to 1 / k^2, rounded down.
        for k, (_, count) in enumerate(coded[:3], start=2):
            assert count == pytest.approx(first / k**2, abs=1.01)
        assert collections.Counter(m.strip() for m in marked(document)) == {
            word: counts[word] for word in top
        }


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("hops", [1, 2])
def test_made_up_questions_are_answered_by_their_sentences(hops, split):
    source = made_up(hops, 3000, split, random.Random(1))
    titles = [passage.title for passage in source.passages]
    assert len(titles) == len(set(titles)) > 20
    for asked in source.questions:
        assert len(asked.support) == hops
        sentences = [p.sentences[i] for p, indices in asked.support for i in indices]
        (answer,) = asked.answers
        assert answer in sentences[-1]
        assert answer not in asked.text
        if hops == 2:
            # The question names the thing; only its sentence says who the person is.
            person = asked.support[1][0].title
            assert person in sentences[0]
            assert person in sentences[1]
            assert person not in asked.text
            assert asked.support[0][0].title.split()[1] in asked.text


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_the_passages_of_a_question_are_in_the_context_and_marked(task):
    for seed in range(4):
        document = make(task, seed)
        context, [(question, answer)] = parts(document)
        numbers = [int(number) for number in re.findall(r"Document (\d+):", context)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 10
        assert document.metric == "string_match_any"
        assert len(document.marked) == (1 if task == "qa_1" else 2)
        assert any(answer.strip() in sentence for sentence in marked(document))
        assert question.endswith("Answer:")
        assert document.branches[0].references == (answer.strip(),)


@pytest.mark.parametrize("task", ruler.TASKS)
def test_a_context_is_hardly_shorter_than_wanted_and_never_longer(task):
    tokenizer = byte_level(chat_template="{{ messages[0]['content'] }}!")
    # A list ends with a whole entry: a needle, or three mentions of a word.
    slack = {"niah_multikey_2": 50, "niah_multikey_3": 110, "cwe": 40, "fwe": 40}
    for split in ("train", "test"):
        for tokens in (900, 1999):
            document = make(
                task, seed=tokens, tokens=tokens, split=split, tokenizer=tokenizer,
                branches="each" if split == "train" else "one", chat=split == "train",
            )  # fmt: skip
            missing = tokens - len(document.context)
            assert 0 <= missing <= slack.get(task, 0.03 * tokens)
            assert document.kind == f"ruler/{task}"
            for branch in document.branches:
                assert 0 < branch.answer < len(branch.ids)


@pytest.mark.parametrize("task", ruler.TASKS)
def test_a_document_repeats_with_its_seed(task):
    assert make(task, seed=5) == make(task, seed=5)
    assert make(task, seed=5) != make(task, seed=6)


@pytest.mark.parametrize("task", NIAH)
def test_keys_values_and_haystacks_are_of_the_split(task):
    for split in ("train", "dev", "test"):
        document = make(task, seed=2, split=split, branches="each")
        context, asked = parts(document)
        for _, answer in asked:
            assert {split_of(value) for value in answer.strip().split(", ")} == {split}
        if task == "niah_multikey_3":
            return
        keys = re.findall(r"\b([a-z]+)-([a-z]+)\b", "".join(marked(document)))
        assert keys
        assert {split_of(word) for key in keys for word in key} == {split}
        essays = set(re.findall(r"Essay (\d+) begins", context))
        assert {split_of(f"essay/{number}") for number in essays} <= {split}
        if task == "niah_single_1":
            assert sum(text in context for text in noise(split)) == 1
        elif "multikey_2" not in task:
            assert essays


def test_words_of_the_lists_are_of_the_split():
    for split in ("train", "dev", "test"):
        context, _ = parts(make("cwe", split=split, tokens=3000))
        found = {word for entry in re.findall(r"\d+\. (\S+)", context) for word in entry.split("-")}
        assert found <= set(words(split))
        context, [(_, coded)] = parts(make("fwe", split=split))
        assert {split_of(word) for word in coded.strip().split(", ")} == {split}
        context, [(_, names)] = parts(make("vt", split=split))
        assert {split_of(name) for name in names.strip().split(", ")} == {split}
        assert len(words(split)) > 300


def test_training_varies_the_wording_and_test_does_not():
    def wordings(split):
        contexts = [parts(make("niah_single_1", s, 1000, split))[0] for s in range(30)]
        return {context.split("\n")[0] for context in contexts}

    assert len(wordings("test")) == 1
    assert len(wordings("train")) == 4
    assert wordings("test") < wordings("train")


def test_a_chat_puts_the_question_into_the_users_message():
    document = make("niah_single_2", chat=True)
    context, [(question, answer)] = parts(document)
    assert context.startswith("<user>The text below hides")
    assert re.search(r"above\?</user><assistant>The special magic number .* is$", question)
    assert re.fullmatch(r" \d{7}", answer)


@pytest.mark.parametrize("task", ruler.TASKS)
def test_too_short_a_context_is_refused(task):
    with pytest.raises(ValueError, match=r"tokens: 60, expected (at least \d+|more) for this task"):
        make(task, tokens=60)


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match=r"task: 'niah', expected one of niah_single_1, "):
        make("niah")


@pytest.mark.model
def test_documents_for_the_real_tokenizer():
    from kvp_ext.integrations import smollm2

    tokenizer = smollm2.load_tokenizer()
    for task in ruler.TASKS:
        document = make(task, tokens=1024, tokenizer=tokenizer)
        assert 0.9 * 1024 < len(document.context) <= 1024
        context, [(question, answer)] = parts(document, tokenizer)
        # Pieces tokenized apart are the tokens of the whole.
        whole = tokenizer(context + question + answer, add_special_tokens=False).input_ids
        assert whole == [*document.context, *document.branches[0].ids]
        for reference in document.branches[0].references:
            assert reference in context
            assert reference in answer
        spans = marked(document, tokenizer)
        assert all(any(r in s for s in spans) for r in document.branches[0].references)
