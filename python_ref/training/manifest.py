"""The manifest of a folder of traces: what is in it, and whether all of it is there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from python_ref.artifacts import replacing
from python_ref.model_info import ModelInfo
from python_ref.training.traces import TraceOptions

MANIFEST = "manifest.json"
FORMAT, VERSION = "kvp-ext traces", 1


@dataclass(frozen=True)
class DocumentEntry:
    """A document in the manifest: its content's digest, and where its trace is."""

    digest: str
    kind: str
    tokens: int
    splits: tuple[int, ...]
    shard: str
    queries_start: int | None = None


@dataclass
class Manifest:
    """What a folder of traces holds.

    Attributes:
        model: that the traces are of.
        dtype: of keys and values, "float16" or "bfloat16".
        options: that the traces were made with.
        corpora: where the documents came from, one entry for each way the folder was filled.
        shards: the size in bytes of each shard.
        documents: in the order of the reader.
    """

    model: ModelInfo
    dtype: str
    options: TraceOptions
    corpora: list[dict[str, Any]] = field(default_factory=list)
    shards: dict[str, int] = field(default_factory=dict)
    documents: list[DocumentEntry] = field(default_factory=list)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.model.layers

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer."""
        return self.model.kv_heads

    @property
    def head_dim_k(self) -> int:
        """Dimension of a key."""
        return self.model.head_dim_k

    @property
    def head_dim_v(self) -> int:
        """Dimension of a value."""
        return self.model.head_dim_v

    @property
    def longest(self) -> int:
        """Tokens of the longest context."""
        return max((document.tokens for document in self.documents), default=0)

    @property
    def tokens(self) -> int:
        """Context tokens of all documents."""
        return sum(document.tokens for document in self.documents)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(self.shards.values())

    def to_json(self) -> dict[str, Any]:
        """The manifest as it is written."""
        head = {"format": FORMAT, "version": VERSION, "longest": self.longest}
        return {**head, "tokens": self.tokens, **asdict(self)}

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is not one that this version can read.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: {folder} is not a folder of traces")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            found = data["format"], data["version"]
            if found != (FORMAT, VERSION):
                raise ValueError(f"is of format {found}, expected {(FORMAT, VERSION)}")
            return cls(
                ModelInfo(**data["model"]),
                data["dtype"],
                # Traces that were made before there was this option weigh all queries alike.
                TraceOptions(**{"answer_share": 0.0, **data["options"]}),
                data["corpora"],
                data["shards"],
                [
                    DocumentEntry(**{**entry, "splits": tuple(entry["splits"])})
                    for entry in data["documents"]
                ],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a manifest of traces: {error!r}") from error

    def write(self, folder: Path) -> None:
        """Replaces the manifest of a folder in one step."""
        with replacing(folder / MANIFEST) as draft:
            draft.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")


def shard_faults(folder: Path, manifest: Manifest) -> dict[str, str]:
    """What is wrong with each damaged shard: it is missing, of another size or unreadable."""
    faults = {}
    wanted: dict[str, set[str]] = {}
    for document in manifest.documents:
        wanted.setdefault(document.shard, set()).add(f"{document.digest}.k")
    for name, size in manifest.shards.items():
        path = folder / name
        if not path.is_file():
            faults[name] = "is missing"
        elif path.stat().st_size != size:
            faults[name] = f"has {path.stat().st_size:,} bytes, expected {size:,}"
        else:
            try:
                with safe_open(path, "pt") as shard:
                    if wanted.get(name, set()) - set(shard.keys()):
                        faults[name] = "does not hold the documents that the manifest says"
            except (SafetensorError, OSError) as error:
                faults[name] = f"cannot be read ({error})"
    return faults


def fault_message(folder: Path, manifest: Manifest, faults: dict[str, str]) -> str:
    """The faults as an error message: the first shard, what is lost and what to do."""
    name, fault = next(iter(faults.items()))
    lost = sum(document.shard in faults for document in manifest.documents)
    others = f" ({len(faults) - 1} more are damaged)" if len(faults) > 1 else ""
    return (
        f"{folder / name} {fault}{others}. {lost} of {len(manifest.documents)} documents are "
        "affected. Run the same `kvp-ext trace` command again with --repair: it removes what is "
        "damaged and traces those documents again"
    )
