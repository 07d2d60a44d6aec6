"""Texts to train and evaluate on, from package registries.

Every text belongs to one split for good, by a hash of its name, so that nothing that training saw
can appear in an evaluation. The texts are freely licensed: human dialogues (chitchat-dataset on
PyPI, MIT), six novels (Debian's r-cran-janeaustenr, public domain) and encyclopaedic essays
(Debian's jargon-text, public domain). Debian packages are fetched with `apt-get download` and
unpacked into the cache folder, which needs no root.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from python_ref.artifacts import build_once

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Text:
    """One text. `name` is unique and identifies it for ever, `source` groups texts of a kind."""

    source: str
    name: str
    text: str

    @property
    def split(self) -> str:
        """Which split the text belongs to, see `split_of`."""
        return split_of(f"{self.source}/{self.name}")


def split_at(index: int) -> str:
    """The split of the item at `index` of a file: of any five items three are for training.

    Unlike a hash this gives every split something of a short file.
    """
    return ("train", "dev", "train", "test", "train")[index % 5]


def split_of(name: str) -> str:
    """The split that `name` belongs to: 60% train, 20% dev, 20% test."""
    return ("train", "train", "train", "dev", "test")[zlib.crc32(name.encode()) % 5]


def passage(texts: Sequence[Text], characters: int, rng: random.Random) -> str:
    """At least `characters` of running text: consecutive texts from a random one on.

    `texts` are of one source and split. If they are shorter than that in all, they repeat.

    Raises:
        ValueError: there is no text.
    """
    if not any(text.text.strip() for text in texts):
        raise ValueError(f"texts: nothing but white space in {len(texts)} texts")
    parts: list[str] = []
    length, i = 0, rng.randrange(len(texts))
    while length < characters:
        parts.append(texts[i].text)
        length += len(parts[-1]) + 2
        i = (i + 1) % len(texts)
    return "\n\n".join(parts)


def dialogues() -> list[Text]:
    """7,168 human chats, one turn a line.

    Raises:
        ModuleNotFoundError: chitchat-dataset is not installed.
    """
    spec = importlib.util.find_spec("chitchat_dataset")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "The dialogues come with the package chitchat-dataset, which is not installed.\n"
            "Install it:\n"
            "    pip install --no-deps chitchat-dataset==0.9.0",
            name="chitchat_dataset",
        )
    path = Path(spec.submodule_search_locations[0]) / "dataset.json"
    chats = json.loads(path.read_text(encoding="utf-8"))
    texts = []
    for name, chat in sorted(chats.items()):
        # One turn is a list of messages by one speaker; the two speakers alternate.
        turns = [" ".join(message["text"].split()) for turn in chat["messages"] for message in turn]
        texts.append(Text("dialogue", name, "\n".join(turn for turn in turns if turn)))
    return texts


def novels() -> list[Text]:
    """The chapters of Jane Austen's six novels."""
    folder = build_once("debian-r-cran-janeaustenr", _debian_package("r-cran-janeaustenr"))
    books = ("emma", "mansfield", "northanger", "persuasion", "pride", "sense")
    database = next(folder.rglob("data/Rdata.rdb")).read_bytes()
    texts = []
    for book, lines in zip(books, _r_character_vectors(database), strict=True):
        chapters = re.split(r"^chapter\b.*$", "\n".join(lines), flags=re.I | re.M)[1:]
        texts += [Text("novel", f"{book}/{i}", unwrap(c)) for i, c in enumerate(chapters)]
    return [text for text in texts if len(text.text) > 1000]


def essays() -> list[Text]:
    """The entries of the Jargon File: 2,300 short essays on computing culture."""
    folder = build_once("debian-jargon-text", _debian_package("jargon-text"))
    with gzip.open(next(folder.rglob("jargon.txt.gz")), "rt", encoding="utf-8") as file:
        prose = "".join(line for line in file if not re.search("[\u2500-\u257f]", line))
    entries = re.split(r"^   (?=:[^:\n]+:)", prose, flags=re.M)[1:]
    return [
        Text("essay", f"{i}/{entry[1:40].partition(':')[0]}", unwrap(entry))
        for i, entry in enumerate(entries)
    ]


def unwrap(text: str) -> str:
    """Joins the lines of each paragraph; paragraphs stay apart."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _debian_package(package: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise RuntimeError(
                    f"The texts of Debian's {package} are fetched with {tool}, which is missing.\n"
                    f"On another system unpack the package's files into {folder.parent} as the\n"
                    f"folder debian-{package}, or train on your own texts."
                )
        steps = (["apt-get", "download", package], ["dpkg-deb", "-x", f"{package}.deb", "."])
        for step in steps:
            done = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(
                    f"{' '.join(step)} failed: {done.stderr.strip()}\n"
                    f"If the package is not found, refresh the package lists: apt-get update"
                )
            for archive in folder.glob(f"{package}_*.deb"):
                archive.rename(folder / f"{package}.deb")
        (folder / f"{package}.deb").unlink()

    return build


def _r_character_vectors(database: bytes) -> Iterator[list[str]]:
    """The character vectors in an R lazy-load database, in file order.

    Each is a block: big-endian length, then a zlib stream of R's XDR serialisation (R Internals,
    section 1.8): a header, then a STRSXP (16) of CHARSXPs (9), each with its flags and length.
    """
    while database:
        stream = zlib.decompressobj()
        data = stream.decompress(database[4:])
        database = stream.unused_data
        (version,) = struct.unpack_from(">i", data, 2)
        offset = 14
        if version == 3:
            offset += 4 + struct.unpack_from(">i", data, offset)[0]
        kind, count = struct.unpack_from(">Ii", data, offset)
        if kind & 0xFF != 16:
            raise ValueError(f"R database: object of type {kind & 0xFF}, expected 16 (character)")
        offset += 8
        strings = []
        for _ in range(count):
            _, length = struct.unpack_from(">Ii", data, offset)
            offset += 8
            strings.append(data[offset : offset + max(length, 0)].decode("utf-8", "replace"))
            offset += max(length, 0)
        yield strings
