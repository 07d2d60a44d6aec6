"""docs/results.md: what eviction costs SmolLM2, every method on the same test documents.

    python bench/results.py [--records build/results.jsonl] [--only needles]

What the records file holds is not measured again, so an interrupted run goes on where it stopped.
The test split is used, once, after every choice was made on the development split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

import kvp_ext
from kvp_ext.active import DEFAULT_POLICY
from kvp_ext.integrations import smollm2
from python_ref.allocators import allocators
from python_ref.artifacts import replacing
from python_ref.data.mixture import documents
from python_ref.evaluation import Plan, contestants, evaluate_into, summarise
from python_ref.evaluation.allocation import allocations
from python_ref.evaluation.metrics import METRICS
from python_ref.evaluation.records import PROTOCOLS
from python_ref.evaluation.summary import Cell, Summary
from python_ref.evaluation.tables import budget_label
from python_ref.model_info import inspect_model

BASELINES = (
    "streaming_llm",
    "keydiff",
    "knorm",
    "lagkv",
    "tova",
    "h2o",
    "snapkv:pool=none",
    "snapkv:pool=5",
    "random",
    "oracle",
)
# Those that read more of the model than its cache and last queries.
WIDER = ("gate", "expected_attention", "capkv", "laprox")
# A calibrated policy ranks the entries of a head as the one that it was made from.
POLICIES = tuple(
    "kvp" if name == DEFAULT_POLICY else f"kvp:{name}"
    for name in sorted(kvp_ext.policies())
    if not name.endswith("-calibrated")
)
CALIBRATED = f"{DEFAULT_POLICY}-calibrated"
BUDGETS = (0.5, 0.25, 0.125, 0.0625)


@dataclass(frozen=True)
class Section:
    """One group of tables: documents, and who is compared on them."""

    name: str
    task: str
    lengths: tuple[int, int]
    count: int
    protocol: str = "after"
    methods: tuple[str, ...] = (*POLICIES, *WIDER, *BASELINES)
    budgets: tuple[float, ...] = BUDGETS
    allocators: tuple[str, ...] = ("uniform",)


UNSEEN, SEEN = "needles", "needles/seen"
SNAPKV_POOLS = tuple(f"snapkv:pool={pool}" for pool in ("none", "5", "7", "13", "21", "31"))
# With the question inside, the best of the windows 8, 16, 32 and 64 and of those pools on
# development documents.
BEST_SNAPKV = "snapkv:window=16,pool=31"
SECTIONS = (
    Section("Needles, templates never seen, 500 tokens", UNSEEN, (450, 550), 28),
    Section("Needles, templates never seen, 1,000 tokens", UNSEEN, (950, 1050), 28),
    Section("Needles, templates seen in training, 500 tokens", SEEN, (450, 550), 28),
    Section("Needles, templates seen in training, 1,000 tokens", SEEN, (950, 1050), 28),
    Section("Dialogue, 1,000 tokens", "dialogue", (1000, 1000), 12),
    Section("Novels, 1,000 tokens", "novel", (1000, 1000), 6),
    Section("Essays, 1,000 tokens", "essay", (1000, 1000), 6),
    Section("RULER niah_single_1", "ruler/niah_single_1", (500, 1000), 24),
    Section("RULER niah_single_2", "ruler/niah_single_2", (500, 1000), 24),
    Section("RULER niah_multikey_1", "ruler/niah_multikey_1", (500, 1000), 24),
    Section(
        "Needles, templates never seen, question in the prefill",
        UNSEEN,
        (450, 550),
        25,
        "inside",
        ("kvp", "tova", *SNAPKV_POOLS, BEST_SNAPKV),
        (0.25, 0.125),
    ),
    Section(
        "Budgets that heads share: needles, templates never seen, 500 tokens",
        UNSEEN,
        (450, 550),
        20,
        methods=(f"kvp:{CALIBRATED}", "gate", "keydiff", "oracle"),
        budgets=(0.25, 0.125),
        allocators=("uniform", *sorted({*allocators()} - {"uniform"}), "share"),
    ),
)
SEED = 100

INTRODUCTION = """\
# Results on SmolLM2-135M-Instruct

Made by `make results`. Documents are of the test split: their texts, keys and values are in no
training trace, and "templates never seen" are in none either. One prefill of a context serves all
methods; entries are removed, never masked. Every method gets the same {sinks} sinks and {recent}
recent tokens inside its budget. Intervals are 95%: Wilson's for proportions, widened by a bootstrap
over documents where several questions share one; a bootstrap over documents for anything else.
Cost / ideal is the ranking cost of the method's raw ranking, mean over heads and documents.

`kvp` is the default policy; `oracle` ranks by the true future attention. `gate` is the shipped
retention gate, which is made to share one budget between all heads: the last table has that, the
others give every head the same. Methods that use queries see those of the compressed part only:
with the question after the eviction, none of the question.
Unless it says otherwise SnapKV's window is 64; `{best}` is the best of four
windows and six pools on development documents, with the question inside.

`docs/measurements/results.jsonl.gz` holds what was measured, a line for each answer; unpacked to
`build/results.jsonl` it gives this page again without running the model.
"""


def main(
    records: Path = Path("build/results.jsonl"),
    out: Path = Path("docs/results.md"),
    only: str = "",
    methods: str = "",
    counts: int | None = None,
) -> None:
    """Measures what is missing and writes the page; --only PART runs the sections of that name."""
    model, tokenizer = smollm2.load()
    info = inspect_model(model, "SmolLM2-135M-Instruct")
    label = f"{info.name} {info.fingerprint[:8]} {info.dtype}"
    pages = []
    for section in SECTIONS:
        if only not in section.name:
            continue
        names = methods.split(";") if methods else list(section.methods)
        plan = Plan(
            label,
            contestants(names),
            section.budgets,
            (section.protocol,),
            allocators=allocations(section.allocators),
        )
        tests = list(
            documents(
                tokenizer,
                {section.task: 1.0},
                counts or section.count,
                lengths=section.lengths,
                split="test",
                seed=SEED,
            )
        )
        tasks = {section.name: tests}
        found = evaluate_into(records, model, tokenizer, tasks, plan, title=section.name)
        summaries = summarise(found, reference=names[0])
        pages.append(page(section, summaries))
    introduction = INTRODUCTION.format(sinks=plan.sinks, recent=plan.recent, best=BEST_SNAPKV)
    with replacing(out) as draft:
        draft.write_text("\n".join([introduction, *pages]), encoding="utf-8")
    print(f"wrote {out}")


def page(section: Section, summaries: Sequence[Summary]) -> str:
    """One section: the task's metric at every budget, and the ranking cost."""
    primary = next(s for s in summaries if s.primary)
    costs = {cell.label: cell.value for s in summaries if s.metric == "cost" for cell in s.cells}
    metric = METRICS[primary.metric]
    assert primary.full is not None
    full = primary.full
    lines = [
        f"## {section.name}",
        "",
        f"{PROTOCOLS[section.protocol].capitalize()}; {metric.label}, "
        f"{'higher' if metric.higher_is_better else 'lower'} is better; whole cache "
        f"{figure(full)}; {full.documents} contexts, {full.questions} "
        f"{'questions' if metric.proportion else 'answers'}.",
        "",
        "| method | " + " | ".join(budget_label(b) for b in section.budgets) + " | cost / ideal |",
        "|---" * (len(section.budgets) + 2) + "|",
    ]
    places = {(cell.label, cell.budget): cell for cell in primary.cells}
    for method in dict.fromkeys(cell.label for cell in primary.cells):
        cells = [figure(places[method, budget]) for budget in section.budgets]
        cost = f"{costs[method]:.2f}" if method in costs else ""
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {cost} |")
    lines.append("")
    if section.allocators == ("uniform",):
        lines += rivals(primary, section.budgets)
    return "\n".join(lines) + "\n"


def rivals(summary: Summary, budgets: Sequence[float]) -> list[str]:
    """The paired difference of the best baseline to kvp, at every budget."""
    sign = 1 if METRICS[summary.metric].higher_is_better else -1
    lines = []
    for budget in budgets:
        found = [
            cell
            for cell in summary.cells
            if cell.budget == budget and cell.method != "oracle" and "kvp" not in cell.method
        ]
        if not found:
            continue
        best = max(found, key=lambda cell: sign * cell.value)
        if best.difference is None or best.difference_interval is None:
            continue
        low, high = best.difference_interval
        lines.append(
            f"- {budget_label(budget)}: best baseline {best.method}, {best.difference:+.2f} "
            f"[{low:+.2f}, {high:+.2f}] against kvp (paired)"
        )
    return lines


def figure(cell: Cell) -> str:
    """Value, interval, and share of the whole cache's."""
    low, high = cell.interval
    share = "" if cell.share is None or cell.method == "full" else f", {cell.share:.0%}"
    return f"{cell.value:.2f} [{low:.2f}, {high:.2f}]{share}"


if __name__ == "__main__":
    typer.run(main)
