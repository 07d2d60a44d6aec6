"""Traces: what a frozen model computes on a document, as much as training a policy needs.

Per (layer, KV head) and context token: the key after RoPE, the raw value, and the utility, i.e.
the attention that the token receives from the queries that follow,

    A[t, i] = max over the query heads of the group of softmax_i(q_t . k_i / sqrt(d))   (fp32)
    a_i     = mean over branches of mean over the branch's queries t of A[t, i]

where the softmax runs over the whole causal prefix: the context, and the branch up to t. Queries
are used while the model runs and never stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from python_ref.data.documents import Branch, Document
from python_ref.decoder import continue_from, prefill
from python_ref.utility import utility

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TENSORS = ("k", "v", "utility", "marked")


@dataclass
class Trace:
    """One context of n tokens.

    Attributes:
        kind: of the document.
        k, v: [L, H, n, D] fp16.
        utility: [L, H, n] fp32, in [0, 1].
        marked: [n] bool, tokens of a fact that is asked for.
    """

    kind: str
    k: Tensor
    v: Tensor
    utility: Tensor
    marked: Tensor

    def save(self, path: Path) -> None:
        """Writes a safetensors file, which appears complete or not at all."""
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        draft = path.with_suffix(".draft")
        save_file(tensors, draft, metadata={"kind": self.kind})
        draft.rename(path)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Reads what `save` wrote."""
        with safe_open(path, "pt") as file:
            return cls(file.metadata()["kind"], *(file.get_tensor(name) for name in _TENSORS))


def trace(model: PreTrainedModel, document: Document) -> Trace:
    """Runs `model` on a document: one prefill, then all branches on it."""
    k, v = prefill(model, document.context)
    marked = torch.zeros(k.shape[2], dtype=torch.bool)
    for start, stop in document.marked:
        marked[start:stop] = True
    utilities = branch_utility(model, k, v, document.branches)
    return Trace(document.kind, k.half().cpu(), v.half().cpu(), utilities, marked)


def branch_utility(
    model: PreTrainedModel, k: Tensor, v: Tensor, branches: Sequence[Branch]
) -> Tensor:
    """Utility a_i [L, H, n] of the context k, v [L, H, n, D], see the head of this file."""
    n = k.shape[2]
    result = torch.zeros(k.shape[:3])

    def observe(layer: int, query: Tensor, key: Tensor) -> None:
        for branch, q, keys in zip(branches, query, key, strict=True):
            length = len(branch.ids)
            received = utility(q[:, :length], keys[:, : n + length])
            result[layer] += received.cpu() / (length * len(branches))

    ids = [branch.ids for branch in branches]
    continue_from(model, k, v, n, ids, logits=False, observer=observe)
    return result


def collect(
    model: PreTrainedModel,
    documents: Sequence[Document],
    folder: Path,
    progress: Callable[[Iterable[Document]], Iterable[Document]] = iter,
) -> list[Path]:
    """Traces every document into `folder`, one file each; files that exist are kept.

    A file is named after the content of its document, so a folder may only be shared by runs of
    one model. Returns the files in the order of the documents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{_digest(document)}.safetensors" for document in documents]
    for path, document in zip(paths, progress(documents), strict=True):
        if not path.exists():
            trace(model, document).save(path)
    return paths


def _digest(document: Document) -> str:
    return hashlib.sha256(repr(document).encode()).hexdigest()[:24]
