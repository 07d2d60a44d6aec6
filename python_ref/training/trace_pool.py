"""Several folders of traces as one, or the part of them that a training wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, overload

from python_ref.training.trace_store import TraceReader
from python_ref.training.traces import Trace


class TracePool(Sequence[Trace]):
    """The traces of several folders, memory mapped, one folder after the other.

    Attributes:
        readers: the folders.
        kinds, without: the patterns that chose among the traces.
    """

    def __init__(
        self,
        folders: Sequence[Path | str],
        *,
        kinds: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> None:
        """Opens the folders.

        Args:
            folders: at least one, all of one model.
            kinds: shell patterns of the kinds of documents to take, such as "ruler/*"; none: all.
            without: of those to leave out again.

        Raises:
            FileNotFoundError: a folder has no manifest.
            ValueError: a folder cannot be read or is of another model than the first, or a
                pattern matches no document.
        """
        if not folders:
            raise ValueError("traces: got no folder, expected at least one")
        self.readers = [TraceReader(folder) for folder in folders]
        self.kinds, self.without = tuple(kinds), tuple(without)
        model = self.readers[0].manifest.model
        for reader in self.readers[1:]:
            if reader.manifest.model.fingerprint != model.fingerprint:
                raise ValueError(
                    f"traces: {reader.folder} is of {reader.manifest.model.name} "
                    f"({reader.manifest.model.fingerprint[:12]}), expected {model.name} "
                    f"({model.fingerprint[:12]}) as in {self.readers[0].folder}"
                )
        present = {d.kind for reader in self.readers for d in reader.manifest.documents}
        for pattern in (*kinds, *without):
            if not any(fnmatch(kind, pattern) for kind in present):
                raise ValueError(
                    f"kind: {pattern!r} matches none of the kinds in the traces, "
                    f"{', '.join(sorted(present))}"
                )
        self._chosen = [
            (reader, number)
            for reader in self.readers
            for number, document in enumerate(reader.manifest.documents)
            if self._wants(document.kind)
        ]
        if not self._chosen:
            raise ValueError("kind: every document is left out, expected some to train on")

    def _wants(self, kind: str) -> bool:
        taken = not self.kinds or any(fnmatch(kind, pattern) for pattern in self.kinds)
        return taken and not any(fnmatch(kind, pattern) for pattern in self.without)

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> Trace: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trace]: ...

    def __getitem__(self, index: int | slice) -> Trace | list[Trace]:
        if isinstance(index, slice):
            return [reader[number] for reader, number in self._chosen[index]]
        reader, number = self._chosen[index]
        return reader[number]

    def summary(self) -> dict[str, Any]:
        """What the traces are, for a policy's provenance."""
        documents = [reader.manifest.documents[number] for reader, number in self._chosen]
        counts: dict[str, int] = {}
        for document in documents:
            counts[document.kind] = counts.get(document.kind, 0) + 1
        return {
            "count": len(documents),
            "tokens": sum(document.tokens for document in documents),
            "longest": max(max(document.splits) for document in documents),
            "kinds": dict(sorted(counts.items())),
            "model": asdict(self.readers[0].manifest.model),
            "folders": [
                {
                    "options": asdict(reader.manifest.options),
                    "corpora": reader.manifest.corpora,
                }
                for reader in self.readers
            ],
        }
