"""Tracing a stream of documents into a folder, as much as time and disk allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_ref.data.documents import Document
from python_ref.model_info import ModelInfo
from python_ref.training.trace_store import (
    TraceWriter,
    bytes_per_token,
    trace_bytes,
    utility_bytes_per_token,
)
from python_ref.training.traces import (
    TraceOptions,
    document_digest,
    first_query,
    is_running_text,
    split_points,
    trace,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Collected:
    """What a call of `collect` did.

    Attributes:
        documents, tokens, bytes: traced and kept; tokens are of the contexts.
        model_tokens: that the model ran, futures included.
        skipped: documents that were in the folder already.
        disk_full: the next document would have exceeded `max_bytes`.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    model_tokens: int = 0
    skipped: int = 0
    disk_full: bool = False


def document_bytes(document: Document, model: ModelInfo, options: TraceOptions) -> int:
    """What the trace of a document takes on disk, known before the model runs."""
    points = split_points(document, options)
    tokens = len(document.context)
    size = tokens * (bytes_per_token(model) + 1) + sum(points) * utility_bytes_per_token(model)
    if options.store == "queries" and is_running_text(document):
        queries = tokens + len(document.branches[0].ids) - first_query(document)
        per_query = bytes_per_token(model, queries=True) - bytes_per_token(model)
        size += queries * per_query + 8 * model.layers
    return size


def collect(
    model: PreTrainedModel,
    documents: Iterable[Document],
    writer: TraceWriter,
    *,
    max_bytes: int | None = None,
    progress: Callable[[Collected, Document], None] = lambda done, document: None,
) -> Collected:
    """Traces every document that `writer` does not have.

    Args:
        writer: for this model; its options are the ones used.
        max_bytes: of the folder; ends before the first document that would exceed it.
        progress: called after each document, traced or skipped.

    Raises:
        ValueError: a document cannot be traced. What was traced before is kept.
    """
    options, info = writer.manifest.options, writer.manifest.model
    done = Collected()
    for document in documents:
        digest = document_digest(document)
        if digest in writer.done:
            done.skipped += 1
        else:
            size = document_bytes(document, info, options)
            if max_bytes is not None and writer.bytes + size > max_bytes:
                done.disk_full = True
                break
            made = trace(model, document, options)
            writer.add(digest, made)
            done.documents += 1
            done.tokens += len(document.context)
            done.bytes += trace_bytes(made)
            done.model_tokens += len(document.context)
            done.model_tokens += sum(len(branch.ids) for branch in document.branches)
        progress(done, document)
    return done
