"""Traces: what a frozen model computes on a document, as much as training a policy needs.

Per (layer, KV head) and context token: the key after RoPE, the raw value, and at each split point
n the utility, i.e. the attention that the token receives from the queries that follow,

    A[t, i] = max over the query heads of the group of softmax_i(scale q_t . k_i)   (fp32)
    a_i     = mean over the future queries t of A[t, i],   i < n

where the softmax runs over all that the model lets t see: the context and the branch up to t, or
the window of a sliding-window layer. Which future there is depends on the document:

- Running text, whose only branch is its own continuation, is one sequence and runs in one forward.
  Its splits lie within the context and at its end; the future is the next `horizon` queries.
- Any other document has one split, its context. All branches share one prefill; a_i is the mean
  over the branches, weighted by `Branch.weight`, of the mean over the branch's queries. With
  `answer_share` a part of that mean is over the queries alone that predict the answer: they are
  few beside the question's, and what they look at decides the answer.

Attention is recomputed in blocks while the model runs, never stored. What a trace takes on disk is
in `python_ref.training.trace_store`.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from python_ref.attention_call import AttentionCall
from python_ref.data.documents import Branch, Document

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHORTEST_SPLIT = 128
# Branches that run as one batch; each has a copy of the context's cache.
BRANCH_BATCH = 8


@dataclass(frozen=True)
class TraceOptions:
    """What is kept of a document.

    Attributes:
        splits: split points drawn of running text, log-uniform in [128, context), beside its end.
        horizon: future queries that count at a split of running text.
        seed: of the split points and of sampled answers.
        store: "utilities" of the split points; "queries": beside them the queries of running text,
            from which the utility of any other split follows (`Trace.utility_at`).
        generate: tokens that the model itself adds after every question, or after the context of
            running text, as a further branch of the same weight; 0: only what the document has.
        temperature: of the generation; 0 is greedy.
        answer_share: share of a branch's weight that goes to the queries that predict its answer,
            in [0, 1]; 0: all queries of a branch weigh the same, as in arXiv 2602.10238.
    """

    splits: int = 6
    horizon: int = 300
    seed: int = 0
    store: str = "utilities"
    generate: int = 0
    temperature: float = 0.0
    answer_share: float = 0.6

    def __post_init__(self) -> None:
        for name, least in (("splits", 0), ("horizon", 1), ("generate", 0), ("temperature", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least {least}")
        if not 0 <= self.answer_share <= 1:
            raise ValueError(f"answer_share: got {self.answer_share}, expected 0 to 1")
        if self.store not in ("utilities", "queries"):
            raise ValueError(f"store: got {self.store!r}, expected 'utilities' or 'queries'")


@dataclass
class Queries:
    """The queries of running text, as much as other split points need.

    Attributes:
        start: index of the first query in the sequence.
        q: [L, Hq, Q, Dk] after RoPE, in the trace's dtype.
        log_total: [L, Hq, Q] fp32, logarithm of the softmax's denominator of each query.
        visible_from: [L, Q] int32, the first token that each query sees.
        scale, softcap: [L] fp32, of the logits; softcap is inf where they are not capped.
    """

    start: int
    q: Tensor
    log_total: Tensor
    visible_from: Tensor
    scale: Tensor
    softcap: Tensor


@dataclass
class Trace:
    """One context of N tokens at positions 0 .. N - 1.

    Attributes:
        kind: of the document.
        k, v: [L, H, N, Dk], [L, H, N, Dv] fp16, or bf16 if the model computes in bf16.
        splits: split points n, ascending; the last is N.
        utilities: of the first n tokens [L, H, n] fp32 in [0, 1], one for each split.
        marked: [N] bool, tokens of a fact that is asked for.
        queries: if they were asked for and the document is running text.
    """

    kind: str
    k: Tensor
    v: Tensor
    splits: tuple[int, ...]
    utilities: tuple[Tensor, ...]
    marked: Tensor
    queries: Queries | None = None

    @property
    def utility(self) -> Tensor:
        """Utility [L, H, N] of the whole context."""
        return self.utilities[-1]

    def utility_at(self, split: int, horizon: int) -> Tensor:
        """Utility [L, H, split] from the stored queries split .. split + horizon - 1.

        What was rounded to 16 bits for storage makes it differ from the utility that the running
        model gave by about a percent.

        Raises:
            ValueError: no queries are stored, or not those.
        """
        if self.queries is None:
            raise ValueError("the trace has no queries: it was not made with store='queries'")
        first, queries = self.queries.start, self.queries.q.shape[2]
        last = min(split + horizon, first + queries)
        if not (first <= split < last and split <= self.k.shape[2]):
            raise ValueError(
                f"split: got {split}, expected {first} to "
                f"{min(first + queries - 1, self.k.shape[2])}"
            )
        layers = [self._layer_utility(layer, split, last) for layer in range(self.k.shape[0])]
        return torch.stack(layers)

    def _layer_utility(self, layer: int, split: int, last: int) -> Tensor:
        stored = self.queries
        assert stored is not None
        heads = self.k.shape[1]
        rows = slice(split - stored.start, last - stored.start)
        q, totals = stored.q[layer, :, rows].float(), stored.log_total[layer, :, rows]
        logits = torch.einsum(
            "hgtd,hid->hgti",
            q.view(heads, -1, *q.shape[1:]),
            self.k[layer, :, :split].float(),
        )
        logits *= stored.scale[layer]
        if torch.isfinite(stored.softcap[layer]):
            logits = stored.softcap[layer] * torch.tanh(logits / stored.softcap[layer])
        weights = (logits - totals.view(heads, -1, totals.shape[1], 1)).exp()
        hidden = torch.arange(split) < stored.visible_from[layer, rows, None]
        return weights.masked_fill(hidden, 0.0).amax(dim=1).mean(dim=1)


def document_digest(document: Document) -> str:
    """24 hexadecimal digits that identify a document by its content."""
    branches = [[list(b.ids), b.answer, b.weight, list(b.references)] for b in document.branches]
    content = [document.kind, list(document.context), branches, document.marked, document.metric]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def is_running_text(document: Document) -> bool:
    """Whether the document is a text with its own continuation as the only branch."""
    if len(document.branches) != 1 or document.metric != "perplexity":
        return False
    return document.branches[0].answer == len(document.branches[0].ids)


def split_points(document: Document, options: TraceOptions) -> tuple[int, ...]:
    """The split points of a document, ascending; the last is the context's length."""
    n = len(document.context)
    points = {n}
    if is_running_text(document) and n > SHORTEST_SPLIT:
        rng = random.Random(f"{document_digest(document)}/{options.seed}")
        for _ in range(options.splits):
            points.add(int(SHORTEST_SPLIT * (n / SHORTEST_SPLIT) ** rng.random()))
    return tuple(sorted(points))


def first_query(document: Document) -> int:
    """Index of the first query that is kept of running text, with store="queries"."""
    return min(SHORTEST_SPLIT, len(document.context))


def trace(
    model: PreTrainedModel,
    document: Document,
    options: TraceOptions | None = None,
    *,
    splits: int | None = None,
    horizon: int | None = None,
) -> Trace:
    """Runs `model` on a document once and keeps what training needs, on the CPU.

    Args:
        options: what is kept; `splits` and `horizon` override the ones in it.

    Raises:
        ValueError: the document has no context, no branch or a token that the model does not
            know, or what the model computes does not fit into 16 bits.
    """
    from python_ref.decoder import prefill  # transformers is slow to import, and reading needs none

    options = options or TraceOptions()
    if splits is not None:
        options = replace(options, splits=splits)
    if horizon is not None:
        options = replace(options, horizon=horizon)
    _check(model, document)
    points = split_points(document, options)
    queries = None
    if is_running_text(document):
        k, v, utilities, queries = _running_text(model, document, points, options)
        if options.generate:
            said = said_branches(model, k, v, document, options)
            other = branch_utility(model, k, v, said, options.answer_share)
            utilities = (*utilities[:-1], (utilities[-1] + other) / 2)
    else:
        # Watched although there is nothing to see, so that every layer runs as the branches will.
        k, v = prefill(model, document.context, watcher=lambda call: None)
        branches = list(document.branches)
        if options.generate:
            branches += said_branches(model, k, v, document, options)
        utilities = (branch_utility(model, k, v, branches, options.answer_share),)
    marked = torch.zeros(len(document.context), dtype=torch.bool)
    for start, stop in document.marked:
        marked[start:stop] = True
    k, v = _stored("keys", k), _stored("values", v)
    return Trace(document.kind, k, v, points, utilities, marked, queries)


def branch_utility(
    model: PreTrainedModel,
    k: Tensor,
    v: Tensor,
    branches: Sequence[Branch],
    answer_share: float = 0.0,
) -> Tensor:
    """Utility a_i [L, H, n] fp32 of the context k, v [L, H, n, D], see the head of this file.

    `answer_share` is described at `TraceOptions`.
    """
    from python_ref.decoder import continue_from

    n = k.shape[2]
    result = torch.zeros(k.shape[:3])
    weight = sum(branch.weight for branch in branches)
    for first in range(0, len(branches), BRANCH_BATCH):
        batch = branches[first : first + BRANCH_BATCH]
        ids = [branch.ids for branch in batch]
        share = torch.zeros(len(batch), max(map(len, ids)))
        for row, branch in zip(share, batch, strict=True):
            row[: len(branch.ids)] = query_shares(branch, answer_share) * (branch.weight / weight)

        def watch(call: AttentionCall, share: Tensor = share) -> None:
            for start, weights in call.group_blocks():
                rows = share[:, start : start + weights.shape[2]].to(weights)
                received = torch.einsum("bt,bhti->hi", rows, weights[..., :n])
                result[call.layer] += received.float().cpu()

        continue_from(model, k, v, n, ids, logits=False, watcher=watch)
    return result


def query_shares(branch: Branch, answer_share: float) -> Tensor:
    """What each query of a branch counts in its mean, [tokens] fp32; they add up to 1.

    A branch without a question is a continuation: all its queries count alike.
    """
    length = len(branch.ids)
    shares = torch.full((length,), 1.0 / length)
    if branch.question and branch.answer:
        shares *= 1.0 - answer_share
        # The question's last token predicts the answer's first, whose last predicts nothing.
        shares[length - branch.answer - 1 : length - 1] += answer_share / branch.answer
    return shares


def said_branches(
    model: PreTrainedModel, k: Tensor, v: Tensor, document: Document, options: TraceOptions
) -> list[Branch]:
    """Each branch's question with what the model itself says next instead of the answer.

    k, v [L, H, n, D] are the cache of the context. Without a question the model goes on with the
    context: then its last token is run again, and the branch is what it says from there on.
    """
    from python_ref.decoder import generate

    n = len(document.context)
    stop = model.generation_config.eos_token_id if model.generation_config else None
    ends = [stop] if isinstance(stop, int) else list(stop or ())
    asked = [branch for branch in document.branches if branch.question]
    silent = [branch for branch in document.branches if not branch.question]
    result = []
    for branches, cut, prompts in (
        (asked, n, [branch.question for branch in asked]),
        (silent[:1], n - 1, [document.context[-1:]] * len(silent[:1])),
    ):
        if branches:
            said = generate(
                model,
                k[:, :, :cut],
                v[:, :, :cut],
                cut,
                prompts,
                options.generate,
                temperature=options.temperature,
                seed=options.seed,
                stop=ends,
            )
            for branch, answer in zip(branches, said, strict=True):
                result.append(
                    Branch((*branch.question, *answer), len(answer), weight=branch.weight)
                )
    return result


def _running_text(
    model: PreTrainedModel, document: Document, points: Sequence[int], options: TraceOptions
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Queries | None]:
    """Keys and values of the context, utilities and, if asked for, queries, in one forward."""
    from python_ref.decoder import prefill

    ids = (*document.context, *document.branches[0].ids)
    n, total = points[-1], len(ids)
    windows = [(point, min(point + options.horizon, total)) for point in points]
    sums: dict[int, Tensor] = {}
    kept: dict[int, list[Tensor]] = {}
    start = first_query(document)

    def watch(call: AttentionCall) -> None:
        if options.store == "queries":
            totals: list[Tensor] = []
            means = _window_means(call, windows, n, [(start, total)], totals)
            kept[call.layer] = _queries_of(call, start, torch.cat(totals, dim=-1))
        else:
            means = _window_means(call, windows, n, _union(windows))
        sums[call.layer] = means.cpu()

    k, v = (x[:, :, :n] for x in prefill(model, ids, watcher=watch))
    layers = range(len(k))
    utilities = tuple(
        torch.stack([sums[layer][:, i, :point] for layer in layers])
        for i, point in enumerate(points)
    )
    queries = None
    if options.store == "queries":
        q, *others = (torch.stack(parts) for parts in zip(*(kept[i] for i in layers), strict=True))
        queries = Queries(start, _stored("queries", q), *others)
    return k, v, utilities, queries


def _window_means(
    call: AttentionCall,
    windows: Sequence[tuple[int, int]],
    n: int,
    ranges: Sequence[tuple[int, int]],
    totals: list[Tensor] | None = None,
) -> Tensor:
    """The mean of A[t, i] over each window's queries t [H, windows, n] fp32.

    Looks at the queries of `ranges`, which cover the windows. Appends the logarithms of their
    softmax's denominators [Hq, t] to `totals` if they are wanted.
    """
    result = torch.zeros(call.key.shape[1], len(windows), n, device=call.key.device)
    begin, end = torch.tensor(windows, device=call.key.device).T[..., None]
    for start, stop in ranges:
        for first, logits in call.logit_blocks(start, stop):
            weights = call.weights(logits)
            if totals is not None:
                # w = exp(logit) / total, here of each query's largest weight.
                total = logits.amax(dim=-1) - weights.amax(dim=-1).log()
                totals.append(total[0].flatten(0, 1))
            group = weights.amax(dim=2)[0, :, :, :n].float()
            t = torch.arange(first, first + group.shape[1], device=call.key.device)
            share = ((begin <= t) & (t < end)) / (end - begin)
            result[..., : group.shape[-1]] += torch.matmul(share, group)
    return result


def _union(windows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges that ascending windows cover together, each number in one of them."""
    merged: list[tuple[int, int]] = []
    for start, stop in windows:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _queries_of(call: AttentionCall, start: int, totals: Tensor) -> list[Tensor]:
    """A layer's share of `Queries`: q, log_total, visible_from, scale, softcap."""
    cap = torch.inf if call.softcap is None else call.softcap
    parts = [
        call.query[0, :, start:],
        totals.float(),
        call.first_visible()[start:],
        torch.tensor(call.scale, dtype=torch.float32),
        torch.tensor(cap, dtype=torch.float32),
    ]
    return [part.cpu() for part in parts]


def _stored(name: str, x: Tensor) -> Tensor:
    """x [L, ...] as it is kept: bf16 stays, anything else becomes fp16."""
    kept = x.to("cpu", torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float16, copy=True)
    finite = torch.isfinite(kept).flatten(1).all(dim=1)
    if not bool(finite.all()):
        layer = int(finite.int().argmin())
        raise ValueError(
            f"{name} of layer {layer} are not finite in {kept.dtype}: run the model in bfloat16"
        )
    return kept.contiguous()


def _check(model: PreTrainedModel, document: Document) -> None:
    """Raises ValueError for a document that cannot be run, naming what is wrong with it."""
    name = f"document of kind {document.kind!r}"
    if not document.context:
        raise ValueError(f"{name}: the context is empty, expected at least one token")
    if not document.branches or not all(branch.ids for branch in document.branches):
        raise ValueError(f"{name}: expected at least one branch, and tokens in each")
    weights = [branch.weight for branch in document.branches]
    if min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise ValueError(f"{name}: branch weights are {weights}, expected >= 0 and not all 0")
    largest = max(max(document.context), *(max(branch.ids) for branch in document.branches))
    embeddings: Any = model.get_input_embeddings()
    known = embeddings.weight.shape[0]
    if largest >= known:
        raise ValueError(
            f"{name}: has token {largest}, but the model knows {known}: the tokenizer is another's"
        )
