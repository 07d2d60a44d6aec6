"""docs/ablation.md: what objectives, inputs, seeds and training tasks matter, on development data.

    python bench/ablation.py [--traces build/traces] [--only inputs]

Every variant is trained on the traces of `make traces` and measured on documents of the development
split. Trained variants are kept in build/ablation, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import typer
from tqdm import tqdm

from kvp_ext.integrations import smollm2
from python_ref.artifacts import replacing
from python_ref.data.mixture import documents
from python_ref.evaluation import Plan, by_agent, evaluate_into, summarise
from python_ref.evaluation.tables import budget_label
from python_ref.training.objectives import objectives
from python_ref.training.recipe import Recipe, parse_phase
from python_ref.training.trace_pool import TracePool
from python_ref.training.train import AnyAgent, Trainer, make_agent
from python_ref.training.validation import ranking_costs

# The default policy's recipe (RECIPE in the Makefile), and one phase of the same size for all.
DEFAULT = ("regression:700", "exact:2500,marked_weight=4,learning_rate=1e-3")
STEPS = 400
BUDGETS = (0.25, 0.125)
FOLDERS = ("ruler", "text", "needles")
# The tasks of RULER that the model with its whole cache can do.
TASKS = ("ruler/niah_single_1", "ruler/niah_single_2", "ruler/niah_multikey_1")


@dataclass(frozen=True)
class Variant:
    """A training that differs from others in one thing."""

    name: str
    phases: tuple[str, ...]
    agent: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    without: tuple[str, ...] = ()

    def recipe(self) -> Recipe:
        """As the trainer takes it."""
        return Recipe(tuple(map(parse_phase, self.phases)), agent=self.agent, seed=self.seed)


@dataclass(frozen=True)
class Section:
    """Variants to compare, and the development documents that they answer questions about."""

    name: str
    text: str
    variants: tuple[Variant, ...]
    tasks: Mapping[str, int]


def equal(name: str, **changes: Any) -> Variant:
    """A training of one phase with as many steps and tokens as all others."""
    objective = changes.pop("objective", "regression")
    return Variant(name, (f"{objective}:{STEPS},items=8,tokens=64,marked_weight=4",), **changes)


NEEDLES = {"needles": 16}
SECTIONS = (
    Section(
        "Objectives",
        f"{STEPS} steps of 8 contexts x 64 tokens from the same initial weights, facts drawn four "
        "times as often, each objective with its own default learning rate.",
        tuple(equal(name, objective=name) for name in objectives()),
        NEEDLES,
    ),
    Section(
        "Inputs",
        f"{STEPS} steps of regression, 8 contexts x 64 tokens. The age is the length of the cache "
        "minus the position: scores that depend on it change as the cache grows, so they cannot be "
        "reused, and a policy file does not hold it.",
        (
            equal("k, v, position (the default)"),
            equal("k, v, position, age", agent={"inputs": "k+v+pos+age"}),
            equal("k, v", agent={"inputs": "k+v"}),
            equal("k, position", agent={"inputs": "k+pos"}),
            equal("v, position", agent={"inputs": "v+pos"}),
            equal("position", agent={"inputs": "pos"}),
            equal("k, v, position as a learned table", agent={"position": "table"}),
            equal("hidden layers of 32", agent={"hidden": 32}),
            equal("hidden layers of 128", agent={"hidden": 128}),
        ),
        NEEDLES,
    ),
    Section(
        "Seeds",
        "The default recipe, the same traces, other initial weights and other draws.",
        tuple(Variant(f"seed {seed}", DEFAULT, seed=seed) for seed in range(3)),
        NEEDLES,
    ),
    Section(
        "Leaving a task out",
        "The default recipe with all traces, and without those of one task of RULER or of all its "
        "needle tasks: answers on each task. The needle documents stay, and one of their 101 "
        "templates has the sentence of RULER's needles.",
        (
            Variant("all traces", DEFAULT),
            *(
                Variant(f"without {task}", DEFAULT, without=(task,))
                for task in (*TASKS, "ruler/niah_*")
            ),
        ),
        dict.fromkeys(TASKS, 24),
    ),
)
SEED = 300

INTRODUCTION = """\
# What matters in training a policy

Made by `make ablation` from the traces of `make traces`, on the development split of SmolLM2-135M.
Cost / ideal is the ranking cost of the held-out traces, mean over heads and contexts: of the raw
ranking and, after the slash, with sinks and recent tokens first in it and in the ideal one; text is
dialogue, novels and essays. Answers are exact match over that of the whole cache, the question
after the eviction, 4 sinks and 16 recent tokens inside the budget.
"""


def main(
    traces: Path = Path("build/traces"),
    work: Path = Path("build/ablation"),
    out: Path = Path("docs/ablation.md"),
    only: str = "",
) -> None:
    """Trains and measures what is missing, and writes the page; --only PART: those sections."""
    model, tokenizer = smollm2.load()
    work.mkdir(parents=True, exist_ok=True)
    pages = []
    for section in SECTIONS:
        if only.lower() not in section.name.lower():
            continue
        agents = {
            variant.name: trained(variant, traces, work)
            for variant in tqdm(section.variants, desc=section.name, file=sys.stderr)
        }
        costs = {name: dev_costs(agent, traces / "dev") for name, agent in agents.items()}
        answers = {}
        for task, count in section.tasks.items():
            tests = list(
                documents(
                    tokenizer, {task: 1.0}, count, lengths=(450, 1000), split="dev", seed=SEED
                )
            )
            rivals = [by_agent(agent, name) for name, agent in agents.items()]
            plan = Plan("SmolLM2", rivals, BUDGETS)
            file = work / "records.jsonl"
            found = evaluate_into(file, model, tokenizer, {task: tests}, plan, title=task)
            summaries = summarise(found, reference=next(iter(agents)))
            answers[task] = next(s for s in summaries if s.metric == "exact_match")
        pages.append(page(section, costs, answers))
    with replacing(out) as draft:
        draft.write_text("\n".join([INTRODUCTION, *pages]), encoding="utf-8")
    print(f"wrote {out}")


def trained(variant: Variant, traces: Path, work: Path) -> AnyAgent:
    """The agent of a variant, from its file if it was trained before."""
    pool = TracePool([traces / name for name in FOLDERS], without=variant.without)
    trainer = Trainer(pool, variant.recipe())
    digest = hashlib.sha256(json.dumps(trainer.config, sort_keys=True).encode()).hexdigest()[:16]
    file = work / f"{digest}.pt"
    if file.exists():
        agent = make_agent(trainer.recipe, trainer.corpus)
        agent.load_state_dict(torch.load(file))
        return agent
    agent = trainer.run()
    with replacing(file) as draft:
        torch.save(agent.state_dict(), draft)
    return agent


def dev_costs(agent: AnyAgent, folder: Path) -> dict[str, tuple[float, float]]:
    """Cost over ideal by kind of held-out trace: of the raw ranking, and with pins first."""
    groups: dict[str, list[Any]] = {}
    for trace in TracePool([folder]):
        kind = trace.kind.partition("/")[0]
        groups.setdefault(kind if kind in ("needles", "ruler") else "text", []).append(trace)
    costs = {}
    for kind, traces in groups.items():
        ratios = ranking_costs(agent, traces, length_aware=agent.length_aware)
        plain, pinned = ratios.mean(dim=(1, 2, 3)).tolist()
        costs[kind] = (plain, pinned)
    return costs


def page(
    section: Section, costs: Mapping[str, Mapping[str, tuple[float, float]]], answers: Any
) -> str:
    """One section as a table."""
    kinds = sorted(next(iter(costs.values())))
    columns = [(task, budget) for task in answers for budget in BUDGETS]
    titles = [f"cost, {kind}" for kind in kinds]
    titles += [f"{task}, {budget_label(budget)}" for task, budget in columns]
    lines = [f"## {section.name}", "", section.text, ""]
    for task, summary in answers.items():
        full = summary.full
        lines.append(
            f"{task}: the whole cache answers {full.value:.2f} of {full.questions} questions in "
            f"{full.documents} contexts."
        )
    lines += ["", "| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for name, found in costs.items():
        cells = [f"{found[kind][0]:.2f} / {found[kind][1]:.2f}" for kind in kinds]
        for task, budget in columns:
            cell = next(c for c in answers[task].cells if (c.method, c.budget) == (name, budget))
            cells.append(f"{cell.share:.2f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
