"""The evaluation: every contestant on every document at every budget, from one prefill each."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from python_ref.data.document import Branch, Document
from python_ref.evaluation.allocation import UNIFORM
from python_ref.evaluation.contestants import common_needs
from python_ref.evaluation.eviction import Survivors, entries, evict
from python_ref.evaluation.metrics import TEXT_METRICS, answer_nll, exact_match, token_accuracy
from python_ref.evaluation.plan import Plan
from python_ref.evaluation.prefilled import Prefilled, prefill_document, prefill_further
from python_ref.evaluation.ranking_cost import best_by_score, relative_loss
from python_ref.evaluation.records import (
    FULL,
    Record,
    Run,
    append_records,
    chosen,
    read_records,
)
from python_ref.evaluation.running import answers, end_tokens, generate
from python_ref.utility import relative_cost

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Generated beyond the length of the expected answer: room for a few words before it.
SPARE_TOKENS = 8


def evaluate(
    model: PreTrainedModel,
    tokenizer: Any,
    tasks: Mapping[str, Sequence[Document]],
    plan: Plan,
    *,
    known: Collection[Record] = (),
) -> Iterator[list[Record]]:
    """The records of one document after another that are not among the `known` ones.

    A document is prefilled at most once, and not at all if all its records are known.

    Args:
        tokenizer: that of the model; its `decode` is needed where a metric compares texts.
        tasks: documents by the name of their task.
    """
    done = {record.key for record in known}
    for task, documents in tasks.items():
        for document in documents:
            missing = [run for run in plan.runs(task, document) if run.key not in done]
            yield _evaluate_document(model, tokenizer, document, plan, missing)


def evaluate_into(
    file: Path,
    model: PreTrainedModel,
    tokenizer: Any,
    tasks: Mapping[str, Sequence[Document]],
    plan: Plan,
    *,
    title: str = "documents",
) -> list[Record]:
    """The records of a plan: those that a file holds, and the others, which it gets as they come.

    Args:
        file: JSON lines; made if it does not exist.
        title: of the progress bar.

    Raises:
        ValueError: the file holds something else than records.
    """
    from tqdm import tqdm

    known = read_records(file)
    new = evaluate(model, tokenizer, tasks, plan, known=known)
    for records in tqdm(new, total=sum(map(len, tasks.values())), desc=title):
        append_records(file, records)
        known += records
    runs = (run for task, some in tasks.items() for one in some for run in plan.runs(task, one))
    return chosen(known, [run.key for run in runs])


def _evaluate_document(
    model: PreTrainedModel, tokenizer: Any, document: Document, plan: Plan, runs: Sequence[Run]
) -> list[Record]:
    if not runs:
        return []
    needs = common_needs(plan.contestants)
    base = prefill_document(model, document, needs)
    records = []
    for branch in dict.fromkeys(run.branch for run in runs):
        item = base
        if branch is not None:
            from python_ref.data.mixture import question_inside

            item = prefill_further(model, base, question_inside(document, branch), needs)
        sample = Sample(model, tokenizer, item, plan)
        records += sample.evaluate([run for run in runs if run.branch == branch])
    return records


class Sample:
    """One prefilled cache, and what becomes of the model's answers when it is compressed."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any, item: Prefilled, plan: Plan) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.item = item
        self.plan = plan
        self.n = item.k.shape[2]
        self.branches = item.document.branches

    def evaluate(self, runs: Sequence[Run]) -> list[Record]:
        """The records of the runs; those that keep as many entries alike are measured together."""
        by_name = {contestant.name: contestant for contestant in self.plan.contestants}
        scores = {
            name: by_name[name].score(self.item).float().cpu()
            for name in dict.fromkeys(run.method for run in runs)
            if name != FULL
        }
        costs = {name: self._costs(ranked) for name, ranked in scores.items()}
        # Caches of one shape: the longest row of one allocator may be much longer than another's.
        by_shape: dict[tuple[int, str], list[Run]] = {}
        for run in runs:
            by_shape.setdefault((entries(run.budget, self.n), run.allocator), []).append(run)
        records: dict[Run, Record] = {}
        for (budget, allocator), same in by_shape.items():
            left = [self._evict(run, scores.get(run.method), budget) for run in same]
            for run, survivors, metrics in zip(same, left, self._measure(left), strict=True):
                if run.method != FULL:
                    metrics |= costs[run.method]
                    metrics |= self._losses(scores[run.method], survivors)
                if allocator != UNIFORM.name:
                    metrics["longest"] = float(survivors.lengths.max())
                records[run] = self._record(run, survivors, metrics)
        return [records[run] for run in runs]

    def _record(self, run: Run, survivors: Survivors, metrics: dict[str, float]) -> Record:
        lengths = survivors.lengths
        return Record(
            **dataclasses.asdict(run),
            n=self.n,
            kept=int(lengths.sum()) // lengths.numel(),
            questions=len(self.branches),
            tokens=sum(_answer_tokens(branch) for branch in self.branches),
            metrics=metrics,
        )

    def _evict(self, run: Run, scores: Tensor | None, budget: int) -> Survivors:
        item, plan = self.item, self.plan
        if scores is None:
            everything = torch.arange(self.n).expand(item.k.shape[:3])
            return Survivors(item.k.cpu(), item.v.cpu(), everything)
        return evict(
            item.k,
            item.v,
            scores,
            budget,
            sinks=plan.sinks,
            recent=plan.recent,
            allocator=next(a for a in plan.allocators if a.name == run.allocator),
        )

    def _costs(self, scores: Tensor) -> dict[str, float]:
        """Of the whole ranking, mean over heads."""
        utility, pins = self.item.utility, (self.plan.sinks, self.plan.recent)
        return {
            "cost": relative_cost(scores, utility).mean().item(),
            "cost_pinned": relative_cost(scores, utility, *pins).mean().item(),
        }

    def _losses(self, scores: Tensor, survivors: Survivors) -> dict[str, float]:
        """At one budget: of the ranking alone, and of what was really kept."""
        alone = best_by_score(scores, survivors.lengths)
        return {
            "lost": relative_loss(self.item.utility, alone),
            "lost_pinned": relative_loss(self.item.utility, survivors.kept),
        }

    def _measure(self, left: Sequence[Survivors]) -> list[dict[str, float]]:
        """Of the model's answers on each cache, means over the branches."""
        metric = self.item.document.metric
        k, v, lengths = side_by_side(left)
        by_branch = [answers(self.model, k, v, self.n, branch, lengths) for branch in self.branches]
        measured = []
        for found in zip(*by_branch, strict=True):
            metrics = {"nll": answer_nll(found), "token_accuracy": token_accuracy(found)}
            if metric != "perplexity":
                metrics["exact_match"] = exact_match(found)
            measured.append(metrics)
        if metric in TEXT_METRICS:
            for branch, row in zip(self.branches, by_branch, strict=True):
                right = [answer.correct for answer in row]
                values = self._text_scores(k, v, lengths, branch, right)
                for metrics, value in zip(measured, values, strict=True):
                    metrics[metric] = metrics.get(metric, 0.0) + value / len(self.branches)
        return measured

    def _text_scores(
        self,
        k: Tensor,
        v: Tensor,
        lengths: Tensor | None,
        branch: Branch,
        correct: Sequence[bool],
    ) -> list[float]:
        """The document's metric of what the model says after a question, on each cache.

        A text that starts with the right answer (`correct`) and so has all its references in it
        need not be generated: no more than that can be found.
        """
        name = self.item.document.metric
        score = TEXT_METRICS[name]
        answer = self._decode(branch.ids[-branch.answer :])
        references = branch.references or (answer,)
        complete = name != "rouge_l" and score(answer, references) == 1.0
        values = [1.0] * len(correct)
        rows = [i for i, right in enumerate(correct) if not (right and complete)]
        if rows:
            limit, stop = branch.answer + SPARE_TOKENS, end_tokens(self.model)
            k, v = k[:, rows], v[:, rows]
            lengths = None if lengths is None else lengths[:, rows]
            said = generate(self.model, k, v, self.n, branch.question, limit, stop, lengths)
            for i, ids in zip(rows, said, strict=True):
                values[i] = score(self._decode(ids), references)
        return values

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()


def side_by_side(left: Sequence[Survivors]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Caches as one batch: k, v [L, R, H, T, D], and lengths [L, R, H] unless no row is shorter."""
    slots = max(survivors.kept.shape[-1] for survivors in left)

    def padded(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, slots - x.shape[2]))

    k = torch.stack([padded(survivors.k) for survivors in left], dim=1)
    v = torch.stack([padded(survivors.v) for survivors in left], dim=1)
    lengths = torch.stack([survivors.lengths for survivors in left], dim=1)
    return k, v, lengths if bool((lengths < slots).any()) else None


def _answer_tokens(branch: Branch) -> int:
    """Tokens of an answer that are predicted; nothing predicts the first one of a continuation."""
    return min(branch.answer, len(branch.ids) - 1)
