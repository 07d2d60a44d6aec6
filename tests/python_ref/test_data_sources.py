import importlib
import random
import struct
import sys
import zlib

import pytest

from python_ref.data import sources
from python_ref.data.sources import Text, passage, split_at, split_of, unwrap


def test_a_text_stays_in_its_split():
    names = [f"book/{i}" for i in range(2000)]
    counts = {split: sum(split_of(n) == split for n in names) for split in sources.SPLITS}
    assert counts["train"] / 2000 == pytest.approx(0.6, abs=0.05)
    assert counts["dev"] / 2000 == pytest.approx(0.2, abs=0.05)
    # A change of the hash would let training see what it is tested on.
    assert [split_of(f"emma/{i}") for i in range(1, 6)] == [
        "train",
        "train",
        "test",
        "train",
        "test",
    ]


def test_a_passage_is_consecutive_texts():
    texts = [Text("s", str(i), str(i) * 10) for i in range(5)]
    found = passage(texts, 25, random.Random(0))
    parts = found.split("\n\n")
    first = int(parts[0][0])
    assert parts == [str((first + i) % 5) * 10 for i in range(3)]
    # What is too short repeats.
    assert passage(texts, 100, random.Random(0)).split("\n\n") == [
        str((first + i) % 5) * 10 for i in range(9)
    ]
    for nothing in ([], [Text("s", "0", " \n")]):
        with pytest.raises(ValueError, match=rf"white space in {len(nothing)} texts"):
            passage(nothing, 100, random.Random(0))


def test_any_five_items_of_a_file_are_three_for_training():
    for start in range(7):
        splits = [split_at(i) for i in range(start, start + 5)]
        assert sorted(splits) == ["dev", "test", "train", "train", "train"]
    assert split_at(0) == "train"


def test_unwrap_joins_lines_and_keeps_paragraphs():
    assert unwrap("  a\n  b\n\n\n c \n") == "a b\n\nc"


def _r_object(strings, version):
    data = b"X\n" + struct.pack(">iii", version, 0x030503, 0x020300)
    if version == 3:
        data += struct.pack(">i", 5) + b"UTF-8"
    data += struct.pack(">ii", 16, len(strings))
    for string in strings:
        raw = string.encode()
        data += struct.pack(">ii", 0x00040009, len(raw)) + raw
    return struct.pack(">I", len(data)) + zlib.compress(data)


@pytest.mark.parametrize("version", [2, 3])
def test_r_character_vectors_are_decoded_without_r(version):
    books = [["Émile", "", "three"], ["x"]]
    database = b"".join(_r_object(book, version) for book in books)
    assert list(sources._r_character_vectors(database)) == books


def test_a_missing_dialogue_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as error:
        sources.dialogues()
    assert str(error.value).splitlines()[2].strip() == (
        "pip install --no-deps chitchat-dataset==0.9.0"
    )


def test_dialogues_are_read_without_importing_the_package():
    importlib.import_module("chitchat_dataset")
    del sys.modules["chitchat_dataset"]
    chats = sources.dialogues()
    assert len(chats) == 7168
    assert sum(len(chat.text) > 4000 for chat in chats) > 500
    assert "chitchat_dataset" not in sys.modules
