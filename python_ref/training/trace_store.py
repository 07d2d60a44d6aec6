"""Traces on disk: a folder of safetensors shards and a manifest.

    manifest.json             what is in the folder; names complete shards only
    shard-00000.safetensors   the tensors of some documents, "<digest>.k" and so on

A shard is written under another name and renamed when it is complete, then the manifest is
replaced, so an interrupted run loses at most the documents of the shard it was filling.

What a token takes, H KV heads and Hq query heads in each of L layers:

    keys and values   2 L H (Dk + Dv) bytes
    utility           4 L H bytes for every split point behind the token
    queries           L (Hq (2 Dk + 4) + 4) bytes, with store="queries" only

SmolLM2-135M: 23,040 + 360 a split, queries 35,760. Qwen2.5-7B: 57,344 + 448 a split, queries
203,952. With the default split points a dialogue of 1,000 tokens takes 59 MB for Qwen2.5-7B. The
paper stores queries, keys and values, 258,048 bytes a token: 1.2 TB for 4,600 dialogues, of 1,011
tokens then. The same tokens with utilities at 7 split points are 0.27 TB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from python_ref.artifacts import replacing
from python_ref.model_info import ModelInfo
from python_ref.training.manifest import (
    MANIFEST,
    DocumentEntry,
    Manifest,
    fault_message,
    shard_faults,
)
from python_ref.training.traces import Queries, Trace, TraceOptions

SHARD_BYTES = 256_000_000
_QUERIES = ("q", "log_total", "visible_from", "scale", "softcap")


def bytes_per_token(model: ModelInfo, *, queries: bool = False) -> int:
    """What a token takes beside its utilities: keys and values, and queries if they are kept."""
    heads = model.layers * model.kv_heads
    size = 2 * heads * (model.head_dim_k + model.head_dim_v)
    if queries:
        size += model.layers * (model.query_heads * (2 * model.head_dim_k + 4) + 4)
    return size


def utility_bytes_per_token(model: ModelInfo) -> int:
    """What a token takes for each split point behind it."""
    return 4 * model.layers * model.kv_heads


def trace_bytes(trace: Trace) -> int:
    """Bytes of a trace's tensors."""
    return sum(x.numel() * x.element_size() for x in _tensors("", trace).values())


class TraceWriter:
    """Adds traces to a folder, one shard at a time; a context manager.

    Traces that were added are written when a shard is full and at the end, also when the `with`
    block fails. What is in memory is a shard at most, and its copy while it is written.

    Attributes:
        done: digests of the documents that need not be traced again.
        manifest: what is on disk.
    """

    def __init__(
        self,
        folder: Path,
        model: ModelInfo,
        options: TraceOptions,
        *,
        corpus: dict[str, Any] | None = None,
        shard_bytes: int = SHARD_BYTES,
        repair: bool = False,
    ) -> None:
        """Opens a folder, which may hold traces of an earlier run with the same options.

        Args:
            corpus: where the documents come from, for the manifest.
            repair: drop damaged shards, so that their documents are traced again.

        Raises:
            ValueError: the folder has traces of another model or with other options, or a shard
                is damaged. Nothing is changed then.
            RuntimeError: another process is writing into the folder.
        """
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes: got {shard_bytes}, expected at least 1")
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RuntimeError(f"{folder}: another process is writing traces there") from None
        try:
            self.folder, self._shard_bytes = folder, shard_bytes
            dtype = "bfloat16" if model.dtype == "bfloat16" else "float16"
            self.manifest = Manifest(model, dtype, options)
            if (folder / MANIFEST).exists():
                self.manifest = Manifest.read(folder)
                self._check_same(model, options)
                self._check_shards(repair)
            for draft in folder.glob("*.draft"):
                draft.unlink()
        except BaseException:
            self._lock.release()
            raise
        self._corpus = corpus
        self._pending: dict[str, Trace] = {}
        self._pending_bytes = 0
        self.done = {document.digest for document in self.manifest.documents}

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bytes(self) -> int:
        """What the folder holds, traces not yet written included."""
        return self.manifest.bytes + self._pending_bytes

    def add(self, digest: str, trace: Trace) -> None:
        """Adds the trace of a document that is not `done`."""
        if digest in self.done:
            raise ValueError(f"digest: {digest} is in the folder already")
        model = self.manifest.model
        expected = (model.layers, model.kv_heads, trace.marked.shape[0])
        for name, x, dim in (("k", trace.k, model.head_dim_k), ("v", trace.v, model.head_dim_v)):
            if x.shape != (*expected, dim) or str(x.dtype) != f"torch.{self.manifest.dtype}":
                raise ValueError(
                    f"{name}: got {list(x.shape)} {x.dtype}, expected {[*expected, dim]} "
                    f"{self.manifest.dtype}"
                )
        size = trace_bytes(trace)
        if self._pending and self._pending_bytes + size > self._shard_bytes:
            self.flush()
        self._pending[digest] = trace
        self._pending_bytes += size
        self.done.add(digest)
        if self._pending_bytes >= self._shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Writes what was added as a shard."""
        if not self._pending:
            return
        # Whatever happens to this shard, closing does not try it again.
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        numbers = [int(re.sub(r"\D", "", name)) for name in self.manifest.shards]
        name = f"shard-{max(numbers, default=-1) + 1:05d}.safetensors"
        tensors: dict[str, Tensor] = {}
        for digest, trace in pending.items():
            tensors |= _tensors(digest, trace)
        try:
            with replacing(self.folder / name) as draft:
                save_file(tensors, draft)
                draft.chmod(0o644)  # safetensors makes files that only their owner can read
                size = draft.stat().st_size
            self._record(name, size, pending)
        except (OSError, SafetensorError) as error:
            raise RuntimeError(
                f"{self.folder / name} cannot be written ({error}). What was written before it is "
                "complete"
            ) from error

    def _record(self, name: str, size: int, traces: dict[str, Trace]) -> None:
        """Enters a shard that is complete into the manifest."""
        self.manifest.shards[name] = size
        for digest, trace in traces.items():
            start = trace.queries.start if trace.queries else None
            self.manifest.documents.append(
                DocumentEntry(digest, trace.kind, trace.marked.shape[0], trace.splits, name, start)
            )
        if self._corpus is not None and self._corpus not in self.manifest.corpora:
            self.manifest.corpora.append(self._corpus)
        self.manifest.write(self.folder)

    def close(self) -> None:
        """Writes the last shard and lets others write."""
        try:
            self.flush()
        finally:
            self._lock.release()

    def _check_same(self, model: ModelInfo, options: TraceOptions) -> None:
        before = asdict(self.manifest.model) | asdict(self.manifest.options)
        now = asdict(model) | asdict(options)
        if before["fingerprint"] == now["fingerprint"]:
            before["name"] = now["name"]  # one model under two names
        differences = [
            f"{key} is {before[key]!r} there and {now[key]!r} here"
            for key in now
            if before[key] != now[key]
        ]
        if differences:
            raise ValueError(
                f"{self.folder} holds traces of another model or with other options: "
                f"{'; '.join(differences)}. Choose another folder, or the same options"
            )

    def _check_shards(self, repair: bool) -> None:
        faults = shard_faults(self.folder, self.manifest)
        if not faults:
            return
        if not repair:
            raise ValueError(fault_message(self.folder, self.manifest, faults))
        for name in faults:
            del self.manifest.shards[name]
        self.manifest.documents = [d for d in self.manifest.documents if d.shard not in faults]
        self.manifest.write(self.folder)
        for name in faults:
            (self.folder / name).unlink(missing_ok=True)


class TraceReader(Sequence[Trace]):
    """The traces of a folder, memory mapped: tensors are read from disk when they are used.

    A folder that is being written to can be read: the reader has what was complete when it was
    opened.

    Attributes:
        folder: where they are.
        manifest: what they are.
    """

    def __init__(self, folder: Path | str) -> None:
        """Opens a folder.

        Raises:
            FileNotFoundError: it has no manifest.
            ValueError: the manifest cannot be read, or a shard is missing or damaged; the message
                names it and says what to do.
        """
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        faults = shard_faults(self.folder, self.manifest)
        if faults:
            raise ValueError(fault_message(self.folder, self.manifest, faults))
        self._shards = {name: safe_open(self.folder / name, "pt") for name in self.manifest.shards}

    def __len__(self) -> int:
        return len(self.manifest.documents)

    @overload
    def __getitem__(self, index: int) -> Trace: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trace]: ...

    def __getitem__(self, index: int | slice) -> Trace | list[Trace]:
        if isinstance(index, slice):
            return [self._trace(document) for document in self.manifest.documents[index]]
        return self._trace(self.manifest.documents[index])

    def _trace(self, document: DocumentEntry) -> Trace:
        shard = self._shards[document.shard]

        def read(name: str) -> Tensor:
            tensor: Tensor = shard.get_tensor(f"{document.digest}.{name}")
            return tensor

        queries = None
        if document.queries_start is not None:
            queries = Queries(document.queries_start, *(read(name) for name in _QUERIES))
        utilities = tuple(read(f"utility.{split}") for split in document.splits)
        return Trace(
            document.kind, read("k"), read("v"), document.splits, utilities, read("marked"), queries
        )


def _tensors(digest: str, trace: Trace) -> dict[str, Tensor]:
    tensors = {"k": trace.k, "v": trace.v, "marked": trace.marked}
    for split, utility in zip(trace.splits, trace.utilities, strict=True):
        tensors[f"utility.{split}"] = utility
    if trace.queries is not None:
        tensors |= {name: getattr(trace.queries, name) for name in _QUERIES}
    return {f"{digest}.{name}": x.contiguous() for name, x in tensors.items()}
