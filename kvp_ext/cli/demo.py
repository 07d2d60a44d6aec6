"""`kvp-ext demo`: a real model reads a real dialogue once; then its cache is evicted.

The dialogue is human text that no training saw, with a few made-up facts inserted, so that there
is something to ask for afterwards; the facts' wordings were not seen in training either. Every
method starts from the same prefill, keeps the same number of entries, sinks and recent window
included, and never sees the questions, which come after the eviction.
"""

from __future__ import annotations

import random
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

import kvp_ext

FRACTIONS = (0.5, 0.25, 0.125)
CONTINUATION = 128
FACTS = 4
QUERY_WINDOW = 64


@dataclass
class Page:
    """What the demo reads.

    Attributes:
        context: token ids of the dialogue with the facts in it.
        continuation: token ids of how the dialogue goes on.
        questions: (token ids of a question, its answer, the question as text).
        facts: token ranges of the facts in the context.
    """

    context: list[int]
    continuation: list[int]
    questions: list[tuple[list[int], str, str]]
    facts: list[tuple[int, int]]


@dataclass
class Outcome:
    """One method at one budget."""

    method: str
    kept: int
    megabytes: float
    evict_ms: float
    nll: float
    answers: list[str] = field(default_factory=list)
    right: int = 0


def run(console: Console, *, tokens: int, policy_name: str, seed: int, out: Path) -> None:
    """The whole demo; see `kvp-ext demo --help`."""
    from kvp_ext.integrations import smollm2

    started = time.perf_counter()
    policy = kvp_ext.load_policy(policy_name)
    with console.status("loading SmolLM2-135M-Instruct (the first time takes a minute)"):
        model, tokenizer = smollm2.load()
    page = write_page(tokenizer, tokens, seed)
    console.print(
        f"[bold]A dialogue of {len(page.context)} tokens[/bold] with {len(page.facts)} facts "
        "inserted, among them:"
    )
    start, stop = page.facts[0]
    excerpt = str(tokenizer.decode(page.context[max(0, start - 30) : stop + 20]))
    console.print(textwrap.indent(escape(excerpt), "  "), style="dim")

    with console.status("prefill"):
        cache, prefill_ms = prefill(model, policy, page)
    outcomes, kept_map = [], None
    with console.status("evicting") as status:
        outcomes.append(measure(model, tokenizer, cache, page, "full cache", 0.0))
        for name, choice in contestants(policy).items():
            for fraction in FRACTIONS:
                budget = kvp_ext.budget_from_ratio(len(page.context), keep_ratio=fraction)
                status.update(f"{name}, {budget} of {len(page.context)} entries kept")
                twin = cache.fork(budget=budget, **choice)
                twin.evict()
                outcomes.append(
                    measure(model, tokenizer, twin, page, name, twin.last_eviction_ms or 0.0)
                )
                if name == "KVP" and fraction == 0.25:
                    kept_map = twin.positions[:, 0]
    show(console, outcomes, page, prefill_ms)
    out.mkdir(parents=True, exist_ok=True)
    assert kept_map is not None
    picture = out / "demo.png"
    draw(picture, outcomes, kept_map, page)
    console.print(f"Picture: {picture}   ({time.perf_counter() - started:.0f} s in all)")


def write_page(tokenizer: Any, tokens: int, seed: int) -> Page:
    """A dialogue of about `tokens` tokens with facts in it, all from the test split."""
    from python_ref.data import documents, facts, sources

    rng = random.Random(seed)
    texts = {"dialogue": sources.dialogues()}
    length = 7 * (tokens + 2 * CONTINUATION)
    sentences = documents.haystack("dialogue", texts, "test", length, rng)
    sizes = [len(tokenizer(s, add_special_tokens=False).input_ids) for s in sentences]
    count, total = 0, FACTS * 20  # a fact takes about 20 tokens
    while total < tokens:
        total += sizes[count]
        count += 1
    chosen = rng.sample(facts.templates("test"), FACTS)
    document = documents.needle_document(
        tokenizer, "dialogue", sentences[:count], chosen, 2 * tokens, rng
    )
    rest = tokenizer("".join(sentences[count:]), add_special_tokens=False).input_ids
    questions = []
    for branch in document.branches:
        question, answer = branch.ids[: -branch.answer], branch.ids[-branch.answer :]
        text = tokenizer.decode(question).strip()
        questions.append((list(question), tokenizer.decode(answer).strip(), text))
    return Page(list(document.context), list(rest[:CONTINUATION]), questions, list(document.marked))


def contestants(policy: kvp_ext.Policy) -> dict[str, dict[str, Any]]:
    """What each method changes in a fork of the prefilled cache."""
    from python_ref.methods import methods

    def baseline(name: str) -> dict[str, Any]:
        method = methods()[name]

        def scorer(k: Tensor, v: Tensor, pos: Tensor, queries: Tensor | None) -> Tensor:
            return method(k=k, v=v, pos=pos, q=queries)

        return {"scorer": scorer}

    return {
        "KVP": {"policy": policy},
        "StreamingLLM": baseline("streaming_llm"),
        "KeyDiff": baseline("keydiff"),
        "SnapKV": baseline("snapkv"),
    }


def prefill(model: Any, policy: kvp_ext.Policy, page: Page) -> tuple[Any, float]:
    """Reads the page once; returns the cache, not yet evicted, and the time in ms."""
    from kvp_ext.integrations.transformers import KVPCache, cache_argument

    cache = KVPCache(
        model.config, budget=len(page.context), policy=policy, when="manual", headroom=1
    )
    ids = torch.tensor([page.context])
    started = time.perf_counter()
    with torch.no_grad(), cache.attach(model, query_window=QUERY_WINDOW):
        model(input_ids=ids, logits_to_keep=1, **cache_argument(model, cache))
    return cache, (time.perf_counter() - started) * 1e3


@torch.no_grad()
def measure(
    model: Any, tokenizer: Any, cache: Any, page: Page, method: str, evict_ms: float
) -> Outcome:
    """The continuation's likelihood and the answers on top of `cache`, which is not changed."""
    from kvp_ext.integrations.transformers import cache_argument

    ids = torch.tensor([page.continuation])
    logits = model(input_ids=ids, **cache_argument(model, cache.fork())).logits[0, :-1]
    nll = F.cross_entropy(logits.float(), ids[0, 1:]).item()
    outcome = Outcome(method, int(cache.lengths.max()), cache.memory_bytes() / 1e6, evict_ms, nll)
    for question, answer, _ in page.questions:
        prompt = torch.tensor([page.context + question])
        said = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            **cache_argument(model, cache.fork()),
            max_new_tokens=len(tokenizer(" " + answer).input_ids),
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )[0, prompt.shape[1] :]
        text = tokenizer.decode(said).strip()
        outcome.answers.append(text)
        outcome.right += text == answer
    return outcome


def show(console: Console, outcomes: list[Outcome], page: Page, prefill_ms: float) -> None:
    """The table, the first question, and where KVP loses."""
    full, *rest = outcomes
    _, answer, question = page.questions[0]
    table = Table(title="One prefill, one eviction, the question afterwards")
    for name in ("method", "entries per head", "cache MB", "evict ms", "NLL", "answers", "says"):
        table.add_column(name, justify="left" if name in ("method", "says") else "right")
    table.add_row(*_cells(full, page))
    for kept in sorted({o.kept for o in rest}, reverse=True):
        table.add_section()
        for o in rest:
            if o.kept == kept:
                table.add_row(*_cells(o, page))
    console.print(table)
    console.print(f"NLL: of the dialogue's next {CONTINUATION} tokens, lower is better.")
    console.print(f"answers: of {len(page.questions)} questions, all asked after the eviction.")
    console.print(f'says: the first one, "{escape(question)}" — {escape(answer)}')
    ours = [o for o in rest if o.method == "KVP"]
    slowest = max(o.evict_ms for o in ours)
    console.print(
        f"Prefill took {prefill_ms:.0f} ms, KVP's eviction at most {slowest:.0f} ms "
        f"({slowest / prefill_ms:.1%} of it), shrinking the storage included."
    )
    for line in verdict(ours, rest, len(page.questions)):
        console.print(line)


def _cells(o: Outcome, page: Page) -> list[str]:
    return [
        o.method,
        str(o.kept),
        f"{o.megabytes:.1f}",
        f"{o.evict_ms:.0f}" if o.evict_ms else "",
        f"{o.nll:.3f}",
        f"{o.right}/{len(page.questions)}",
        escape(o.answers[0]),
    ]


def verdict(ours: list[Outcome], rest: list[Outcome], questions: int) -> list[str]:
    """Where KVP wins and where it loses on this page, in words."""
    lines = []
    for mine in ours:
        same = [o for o in rest if o.kept == mine.kept and o.method != "KVP"]
        best = max(same, key=lambda o: o.right)
        relation = (
            "wins" if mine.right > best.right else "loses" if mine.right < best.right else "ties"
        )
        lines.append(
            f"{mine.kept} entries: on answers KVP {relation}, {mine.right} of {questions} against "
            f"{best.right} of the best other method ({best.method});"
        )
        ahead = sorted((o for o in same if o.nll < mine.nll), key=lambda o: o.nll)
        lines.append(
            "  on the continuation KVP loses to "
            + ", ".join(f"{o.method} ({mine.nll - o.nll:.3f} nats)" for o in ahead)
            + "."
            if ahead
            else "  on the continuation no other method is better."
        )
    lines.append(
        "One page is an illustration: differences of a few hundredths of a nat over "
        f"{CONTINUATION} tokens are noise. docs/policies.md has the measurements."
    )
    return lines


def draw(path: Path, outcomes: list[Outcome], kept: Tensor, page: Page) -> None:
    """Which tokens each layer kept, and quality against entries kept.

    `kept` holds logical positions `[L, H, slots]`, -1 where a slot is empty.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    layers, heads, _ = kept.shape
    share = torch.zeros(layers, len(page.context))
    for layer in range(layers):
        slots = kept[layer][kept[layer] >= 0].long()
        share[layer] = torch.bincount(slots, minlength=len(page.context))[: len(page.context)]
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(17, 5), width_ratios=(2.2, 1, 1), layout="constrained"
    )
    shown = left.imshow(
        share / heads, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest"
    )
    for start, stop in page.facts:
        left.axvspan(start - 0.5, stop - 0.5, color="tab:orange", alpha=0.25, lw=0)
    left.set(
        xlabel="token (orange: the facts)",
        ylabel="layer",
        title=f"KVP, {int((kept[0, 0] >= 0).sum())} of {len(page.context)} entries per head",
    )
    figure.colorbar(shown, ax=left, label="share of the layer's KV heads that kept it")
    full, *rest = outcomes
    budgets = sorted({o.kept for o in rest})
    for axis, name, field_name in (
        (middle, "questions answered", "right"),
        (right, "NLL of the continuation", "nll"),
    ):
        axis.axhline(getattr(full, field_name), color="black", ls=":", label="full cache")
        for shift, method in enumerate(dict.fromkeys(o.method for o in rest)):
            points = sorted((o.kept, getattr(o, field_name)) for o in rest if o.method == method)
            # Slightly apart, so that equal results do not hide each other.
            kept_by = [kept * (1 + 0.015 * shift) for kept, _ in points]
            axis.plot(kept_by, [y for _, y in points], marker="o", label=method)
        axis.set(xlabel="entries kept per head (log scale)", ylabel=name, xscale="log")
        axis.set_xticks(budgets, map(str, budgets))
        axis.minorticks_off()
    middle.set(title="higher is better", ylim=(-0.2, len(page.questions) + 0.2))
    right.set_title("lower is better")
    right.legend()
    figure.savefig(path, dpi=100)
    plt.close(figure)
