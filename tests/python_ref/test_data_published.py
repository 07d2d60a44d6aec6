import json
import random
import re

import pytest
from tiny_tokenizers import CharacterTokenizer

from python_ref.data import published, ruler

TOKENIZER = CharacterTokenizer()


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def longbench(**changes):
    line = {
        "input": "An abstract.",
        "context": "Paragraph 1: One.\n\nParagraph 2: Two.",
        "answers": ["Paragraph 2"],
        "length": 6,
        "dataset": "passage_retrieval_en",
        "language": "en",
        "all_classes": None,
        "_id": "0",
    }
    return {**line, **changes}


BOOLQ = {"question": "is the sky blue", "passage": "It is.", "answer": True, "title": "Sky"}


def text(ids):
    return TOKENIZER.decode(ids)


def answer(branch):
    return text(branch.ids[-branch.answer :])


def test_longbench_passage_retrieval(tmp_path):
    path = write(tmp_path / "passage_retrieval_en.jsonl", [longbench()])
    assert published.is_questions(path)
    (document,) = published.documents(TOKENIZER, path)
    (branch,) = document.branches
    assert document.kind == "longbench/passage_retrieval_en"
    assert document.metric == "string_match_any"
    assert text(document.context).endswith("\n\nParagraph 1: One.\n\nParagraph 2: Two.")
    assert "An abstract." in text(branch.question)
    assert "An abstract." not in text(document.context)
    assert answer(branch) == " Paragraph 2"
    assert branch.references == ("Paragraph 2",)


def test_longbench_gov_report(tmp_path):
    lines = [longbench(dataset="gov_report", input="", context="A report.", answers=["S.", "T."])]
    (document,) = published.documents(TOKENIZER, write(tmp_path / "gov_report.jsonl", lines))
    assert document.kind == "longbench/gov_report"
    assert document.metric == "rouge_l"
    assert document.branches[0].references == ("S.", "T.")
    assert text(document.branches[0].question).endswith("Summary:")


def test_boolq(tmp_path):
    path = write(tmp_path / "dev.jsonl", [BOOLQ, {**BOOLQ, "answer": False}])
    assert published.is_questions(path)
    documents = published.documents(TOKENIZER, path)
    assert [answer(document.branches[0]) for document in documents] == [" yes", " no"]
    assert all(document.metric == "exact_match" for document in documents)
    assert "Sky\nIt is." in text(documents[0].context)
    assert "is the sky blue?" in text(documents[0].branches[0].question)


def test_a_long_context_loses_its_middle(tmp_path):
    lines = [longbench(context="".join(f"[{i:04}]" for i in range(1000)))]
    path = write(tmp_path / "long.jsonl", lines)
    (whole,) = published.documents(TOKENIZER, path)
    (document,) = published.documents(TOKENIZER, path, 1000)
    assert len(document.context) == 1000
    assert len(whole.context) > 6000
    kept = text(document.context)
    assert kept.startswith(text(whole.context)[:500])
    numbers = [int(number) for number in re.findall(r"\[(\d{4})\]", kept)]
    middle = next(i for i in range(len(numbers)) if numbers[i] != i)
    assert numbers[middle:] == list(range(numbers[middle], 1000))
    assert middle == pytest.approx(len(numbers) / 2, abs=1)
    assert document.branches == whole.branches


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (longbench(dataset="qasper"), "`dataset` is 'qasper', expected passage_retrieval_en or"),
        (longbench(answers=[]), "`answers` is [], expected texts"),
        (longbench(answers="Paragraph 2"), "`answers`: got str, expected list"),
        (longbench(context=None), "`context`: got NoneType, expected str"),
        ({**BOOLQ, "answer": "yes"}, "`answer`: got str, expected bool"),
        ({"text": "x"}, "expected the fields of LongBench"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "bad.jsonl", [longbench(), line])
    with pytest.raises(ValueError, match=rf"bad\.jsonl, line 2: {re.escape(message)}"):
        published.questions(path)


def squad(paragraphs=6):
    def paragraph(i):
        context = f" Town {i} lies in the north. It has {100 + i} people. Mayor {i} rules it."
        start = context.index(str(100 + i))
        found = [{"text": str(100 + i), "answer_start": start}] * 2
        return {
            "context": context,
            "qas": [
                {"id": "a", "question": f"How many people has Town {i}?", "answers": found},
                {"id": "b", "question": "?", "answers": [], "is_impossible": True},
            ],
        }

    articles = [
        {"title": f"Towns_{i}", "paragraphs": [paragraph(i), paragraph(i + 1)]}
        for i in range(0, paragraphs, 2)
    ]
    return {"version": "v2.0", "data": articles}


def hotpotqa(count=5):
    return [
        {
            "_id": str(i),
            "question": f"Where was the founder of firm {i} born?",
            "answer": f"City {i}",
            "type": "bridge",
            "level": "hard",
            "context": [
                [f"Firm {i}", [f"Firm {i} sells tea.", f" It was founded by Person {i}."]],
                [f"Person {i}", [f"Person {i} was born in City {i}.", " More is not known."]],
                [f"Other {i}", [f"Other {i} is beside the point."]],
            ],
            "supporting_facts": [[f"Firm {i}", 1], [f"Person {i}", 0], [f"Person {i}", 9]],
        }
        for i in range(count)
    ]


def ask(tmp_path, content, task, tokens=600, **options):
    path = tmp_path / "passages.json"
    path.write_text(json.dumps(content))
    source = published.passages(path)
    return ruler.document(
        task, TOKENIZER, random.Random(3), tokens, "test", texts={}, passages=source, **options
    )


def marked(document):
    return [text(document.context[a:b]).strip() for a, b in document.marked]


def test_squad_passages(tmp_path):
    document = ask(tmp_path, squad(), "qa_1")
    context, (branch,) = text(document.context), document.branches
    number = re.search(r"has Town (\d)\?", text(branch.question)).group(1)
    assert answer(branch) == f" {100 + int(number)}"
    assert branch.references == (f"{100 + int(number)}",)
    assert marked(document) == [f"It has {100 + int(number)} people."]
    assert f"\nTowns {int(number) // 2 * 2}\nTown {number} lies in the north." in context
    assert set(re.findall(r"Town (\d) lies", context)) == set("012345")


def test_hotpotqa_passages(tmp_path):
    document = ask(tmp_path, hotpotqa(), "qa_2", 900)
    context, (branch,) = text(document.context), document.branches
    number = re.search(r"firm (\d)", text(branch.question)).group(1)
    assert answer(branch) == f" City {number}"
    assert sorted(marked(document)) == [
        f"It was founded by Person {number}.",
        f"Person {number} was born in City {number}.",
    ]
    assert len(set(re.findall(r"Other (\d) is", context))) >= 3


def test_several_questions_of_a_context(tmp_path):
    document = ask(tmp_path, squad(), "qa_1", 1300, branches="each")
    answers = {answer(branch).strip() for branch in document.branches}
    assert len(document.branches) == len(answers) == len(document.marked) == 4
    assert {re.search(r"\d+", sentence).group() for sentence in marked(document)} == answers


def test_few_passages_fill_a_long_context(tmp_path):
    document = ask(tmp_path, squad(2), "qa_1", 2000)
    assert 1900 <= len(document.context) <= 2000


def test_a_passage_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"tokens: 200, expected at least \d{3}"):
        ask(tmp_path, squad(), "qa_1", 200)


def without(content, *path):
    """The content without the entry at the end of `path`."""
    content = json.loads(json.dumps(content))
    place = content
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return content


def shifted():
    content = squad()
    content["data"][1]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 0
    return content


def unsupported():
    content = hotpotqa()
    content[2]["supporting_facts"] = [["Nothing", 0]]
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": []}, "passages.json: expected SQuAD"),
        ([], "passages.json: no question that can be answered"),
        (without(squad(), "data", 1, "paragraphs"), "data[1]: no `paragraphs`, but 'title'"),
        (
            without(squad(), "data", 1, "paragraphs", 0, "qas", 0, "question"),
            "data[1].paragraphs[0].qas[0]: no `question`",
        ),
        (shifted(), "data[1].paragraphs[0].qas[0]: '102' is not at `answer_start` 0"),
        (without(hotpotqa(), 2, "answer"), "item 2: no `answer`"),
        (unsupported(), "item 2: the supporting fact 'Nothing' is no title of `context`"),
        ([3], "item 0: got int, expected an object"),
    ],
)
def test_malformed_passages_are_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ask(tmp_path, content, "qa_1")


def test_a_file_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json: not JSON"):
        published.passages(path)
