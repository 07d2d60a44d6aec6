import json
import random
import re

import pytest
from tiny_tokenizers import CHATML, CharacterTokenizer, byte_level, metaspace

from python_ref.data import corpora

CHATS = [
    [("user", f"Question {i}, please?"), ("assistant", f"Answer {i}."), ("user", "Thanks!")]
    for i in range(10)
]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def chats(path):
    messages = [[{"role": r, "content": c} for r, c in chat] for chat in CHATS]
    return write(path, [{"messages": own} for own in messages])


def test_jsonl_holds_texts_and_chats_and_the_splits_take_turns(tmp_path):
    path = write(
        tmp_path / "mine.jsonl",
        [{"text": f"Text {i}."} for i in range(4)]
        + [{"messages": [{"role": "user", "content": "Hi"}, {"role": "bot", "content": "Yes"}]}]
        + [{"text": "Text 5."}],
    )
    items = corpora.read(path)
    assert [item.text for item in items] == [
        "Text 0.",
        "Text 1.",
        "Text 2.",
        "Text 3.",
        "",
        "Text 5.",
    ]
    assert items[4].messages == (("user", "Hi"), ("bot", "Yes"))
    assert [item.split for item in items] == ["train", "dev", "train", "test", "train", "train"]
    assert items[3].place == f"{path}, line 4"


def test_the_best_ranked_path_of_a_message_tree(tmp_path):
    def message(role, text, rank=None, replies=()):
        return {"role": role, "text": text, "rank": rank, "replies": list(replies)}

    tree = message(
        "prompter",
        "Why?",
        replies=[
            message("assistant", "Worse.", 1, [message("prompter", "Wrong path.")]),
            message(
                "assistant",
                "Because.",
                0,
                [message("prompter", "First."), message("prompter", "Second.")],
            ),
        ],
    )
    path = write(tmp_path / "oasst.jsonl", [{"message_tree_id": "x", "prompt": tree}])
    (item,) = corpora.read(path)
    assert item.messages == (("user", "Why?"), ("assistant", "Because."), ("user", "First."))


def test_a_plain_text_is_divided_and_nothing_is_lost(tmp_path):
    path = tmp_path / "book.txt"
    paragraphs = [f"Paragraph {i}. " + "word " * 20 for i in range(40)]
    path.write_text("\n\n".join(paragraphs))
    items = corpora.read(path)
    assert {item.split for item in items} == {"train", "dev", "test"}
    assert re.findall(r"Paragraph (\d+)", " ".join(item.text for item in items)) == [
        str(i) for i in range(40)
    ]


def test_a_long_text_is_several_items_of_one_split(tmp_path):
    long = "\n".join(f"Line {i} of a long text." for i in range(1000))
    path = write(tmp_path / "mine.jsonl", [{"text": "Short."}, {"text": long}, {"text": "End."}])
    first, *middle, last = corpora.read(path)
    assert (first.text, last.text) == ("Short.", "End.")
    assert len(middle) == 4
    assert "\n".join(item.text for item in middle) == long
    assert {(item.split, item.place) for item in middle} == {("dev", f"{path}, line 2")}


def test_a_line_ends_at_a_newline_only(tmp_path):
    path = tmp_path / "mine.jsonl"
    texts = ["One\u2028two.", "Three\x85four."]
    path.write_text(
        "\r\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts),
        encoding="utf-8",
    )
    assert [item.text for item in corpora.read(path)] == texts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "an empty line"),
        ("{", "not JSON"),
        ("3", "got int, expected a JSON object"),
        ('{"body": "x"}', "expected `text`, `messages` or a message tree, but found 'body'"),
        ('{"text": 3}', "`text`: got int, expected str"),
        ('{"text": " "}', "`text` is empty"),
        ('{"messages": []}', "`messages` is empty"),
        ('{"messages": [1]}', "message: got int"),
        ('{"messages": [{"role": "user"}]}', "no `content`, but 'role'"),
        ('{"prompt": {"role": "prompter"}}', "no `text`, but 'role'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "fine"}\n' + line + '\n{"text": "fine"}\n')
    with pytest.raises(ValueError, match=rf"mine\.jsonl, line 2: {re.escape(message)}"):
        corpora.read(path)


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.txt"])
def test_an_empty_file_is_refused(tmp_path, name):
    (tmp_path / name).write_text("\n")
    with pytest.raises(ValueError, match=rf"{name}: no text in the file"):
        corpora.read(tmp_path / name)


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"mine\.txt: not UTF-8"):
        corpora.read(tmp_path / "mine.txt")
    with pytest.raises(FileNotFoundError, match=r"none\.txt: no such file"):
        corpora.read(tmp_path / "none.txt")


def test_a_document_is_running_text_that_begins_again_at_the_end(tmp_path):
    path = write(tmp_path / "mine.jsonl", [{"text": f"Text {i} ends."} for i in range(3)])
    tokenizer = CharacterTokenizer()
    items = corpora.read(path)
    document = corpora.document(tokenizer, "mine", items, random.Random(1), 100, 30)
    text = tokenizer.decode(document.context + document.branches[0].ids)
    assert len(document.context) == 100
    assert document.branches[0].answer == len(document.branches[0].ids) == 30
    assert document.metric == "perplexity"
    first = int(text[5])
    loop = "\n\n".join(f"Text {(first + i) % 3} ends." for i in range(12))
    assert text == loop[:130]


@pytest.mark.parametrize("template", [None, CHATML])
def test_the_context_of_chats_ends_with_a_turn(tmp_path, template):
    tokenizer = byte_level(template)
    items = corpora.read(chats(tmp_path / "chats.jsonl"))
    ends = {"user": "<|end|>", "assistant": "<|end|>"} if template else {}
    for seed in range(5):
        document = corpora.document(tokenizer, "chats", items, random.Random(seed), 300, 50)
        context = tokenizer.decode(document.context)
        future = tokenizer.decode(document.branches[0].ids)
        assert 250 < len(document.context) <= 300
        assert len(document.branches[0].ids) == 50
        if template:
            assert context.startswith("<|user|>Question")
            assert context.endswith(ends["user"])
            assert re.match(r"<\|(user|assistant)\|>", future)
        else:
            assert context.startswith("user: Question")
            assert re.match(r"\n(user|assistant): ", future)
        # All is there, in order, once.
        turns = re.findall(r"Question (\d), please\?.*?Answer (\d)\.", context, flags=re.S)
        assert all(a == b for a, b in turns)
        numbers = [int(a) for a, _ in turns]
        assert numbers == [(numbers[0] + i) % 10 for i in range(len(numbers))]


def test_a_long_turn_is_divided(tmp_path):
    chat = {"messages": [{"role": "user", "content": "word " * 500}]}
    items = corpora.read(write(tmp_path / "chats.jsonl", [chat]))
    document = corpora.document(byte_level(CHATML), "chats", items, random.Random(0), 300, 20)
    assert len(document.context) == 300


def test_a_text_begins_as_the_tokenizer_begins_texts(tmp_path):
    tokenizer = metaspace()
    items = corpora.read(write(tmp_path / "mine.jsonl", [{"text": "The answer is here. " * 20}]))
    document = corpora.document(tokenizer, "mine", items, random.Random(0), 40, 20)
    whole = tokenizer("The answer is here. " * 20).input_ids
    assert whole[0] == tokenizer.bos_token_id
    assert [*document.context, *document.branches[0].ids] == whole[:60]


def test_a_format_with_a_beginning_begins_once(tmp_path):
    tokenizer = metaspace("{{ bos_token }}" + CHATML)
    items = corpora.read(chats(tmp_path / "chats.jsonl"))
    document = corpora.document(tokenizer, "chats", items, random.Random(0), 300, 50)
    assert document.context[0] == tokenizer.bos_token_id
    assert document.context.count(tokenizer.bos_token_id) == 1


def test_a_chat_that_the_format_does_not_take_is_named(tmp_path):
    tokenizer = byte_level("{{ raise_exception('no such role') }}")
    path = chats(tmp_path / "chats.jsonl")
    with pytest.raises(ValueError, match=r"chats\.jsonl, line \d+: .*no such role"):
        corpora.document(tokenizer, "chats", corpora.read(path), random.Random(0), 50)


def test_no_items_are_refused():
    with pytest.raises(ValueError, match="chats: no text for this split"):
        corpora.document(byte_level(), "chats", [], random.Random(0), 50)
