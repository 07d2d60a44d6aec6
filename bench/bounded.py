"""docs/generation.md: SmolLM2 on a bounded cache, over a long text and over 2,000 new tokens.

    python bench/bounded.py [--records docs/measurements/bounded.jsonl] [--only perplexity]

What the records file holds is not measured again.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor
from transformers import DynamicCache

from kvp_ext.active import DEFAULT_POLICY
from kvp_ext.gates import load_gate
from kvp_ext.integrations import smollm2
from kvp_ext.integrations.transformers import KVPCache, cache_argument
from python_ref.artifacts import replacing
from python_ref.data.mixture import documents
from python_ref.methods import methods

FULL, GATE = "full", "gate"
TOKENS, BLOCK = 4096, 64
BUDGETS = (256,)
TEXTS = ("novel", "dialogue")
NEW_TOKENS, PROMPT, BUDGET, INTERVAL = 2000, 512, 256, 64
# Steps whose median is one point of the curves, and positions whose mean loss is.
BUCKET = 200
SEGMENT = 512


def rivals() -> list[str]:
    """Policies, the gate, and methods that can run while a model decodes."""
    return [
        GATE,
        DEFAULT_POLICY,
        f"{DEFAULT_POLICY}-dialogue",
        *(name for name, method in methods().items() if method.decode),
    ]


def bounded(model: Any, method: str, budget: int, interval: int) -> KVPCache:
    """A cache that ranks by a policy, the gate with one budget for the model, or a method."""
    ranked: dict[str, Any] = {"scorer": method} if method in methods() else {"policy": method}
    if method == GATE:
        ranked = {"scorer": load_gate(DEFAULT_POLICY), "allocator": "model"}
    return KVPCache(model.config, budget, interval=interval, **ranked)


@torch.no_grad()
def losses(model: Any, ids: Sequence[int], cache: Any) -> Tensor:
    """Negative log-likelihood of every token but the first, read in blocks.

    A block attends to the cache and itself; then the cache is evicted.
    """
    tokens, found = torch.tensor([list(ids)]), []
    for start in range(0, len(ids) - 1, BLOCK):
        block = tokens[:, start : start + BLOCK]
        logits = model(block, use_cache=True, **cache_argument(model, cache)).logits[0]
        target = tokens[0, start + 1 : start + 1 + BLOCK]
        found.append(
            torch.nn.functional.cross_entropy(logits[: len(target)], target, reduction="none")
        )
    return torch.cat(found)


def perplexities(model: Any, tokenizer: Any, known: Sequence[dict]) -> Iterator[dict]:
    """Records of the long texts that are not known yet, one text after another."""
    done = {(r["text"], r["method"], r["budget"]) for r in known if r["part"] == "perplexity"}
    for text in TEXTS:
        ids = next(
            iter(documents(tokenizer, {text: 1.0}, 1, lengths=(TOKENS, TOKENS), split="test"))
        ).context
        for method, budget in [(FULL, 0), *((m, b) for b in BUDGETS for m in rivals())]:
            if (text, method, budget) in done:
                continue
            started = time.perf_counter()
            if method == FULL:
                loss = losses(model, ids, DynamicCache(config=model.config))
            else:
                cache = bounded(model, method, budget, BLOCK)
                with cache.attach(model):
                    loss = losses(model, ids, cache)
            yield {
                "part": "perplexity",
                "text": text,
                "method": method,
                "budget": budget,
                "tokens": len(loss),
                "nll": loss.mean().item(),
                "segments": [part.mean().item() for part in loss.split(SEGMENT)],
                "seconds": time.perf_counter() - started,
            }


@torch.no_grad()
def generation(model: Any, tokenizer: Any) -> dict:
    """2,000 new tokens with a full and a bounded cache, step by step in turns."""
    prompt = next(
        iter(documents(tokenizer, {"novel": 1.0}, 1, lengths=(PROMPT, PROMPT), split="test"))
    ).context
    caches = {
        FULL: DynamicCache(config=model.config),
        DEFAULT_POLICY: bounded(model, DEFAULT_POLICY, BUDGET, INTERVAL),
    }
    step = {name: torch.tensor([list(prompt)]) for name in caches}
    times: dict[str, list[float]] = {name: [] for name in caches}
    held: dict[str, list[int]] = {name: [] for name in caches}
    generator = torch.Generator().manual_seed(0)
    for _ in range(NEW_TOKENS + 1):
        for name, cache in caches.items():
            started = time.perf_counter()
            logits = model(step[name], use_cache=True, **cache_argument(model, cache)).logits
            times[name].append(time.perf_counter() - started)
            chances = logits[:, -1].softmax(-1)
            step[name] = torch.multinomial(chances, 1, generator=generator)
            held[name].append(_bytes(cache))
    return {
        "part": "generation",
        "prompt": PROMPT,
        "new_tokens": NEW_TOKENS,
        "budget": BUDGET,
        "interval": INTERVAL,
        "ms": {n: [1e3 * t for t in times[n][1:]] for n in caches},
        "bytes": {n: held[n][1:] for n in caches},
        "evictions": caches[DEFAULT_POLICY].evictions,
    }


def _bytes(cache: Any) -> int:
    if isinstance(cache, KVPCache):
        return cache.memory_bytes()
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


# ---- the page ----------------------------------------------------------------------------------


def page(records: Sequence[dict]) -> str:
    """docs/generation.md."""
    lines = [
        "# Generation on a bounded cache",
        "",
        "Made by `make bounded` on SmolLM2-135M-Instruct, in fp32 on two CPU cores. The cache is a",
        "`KVPCache` with an `interval`, see [transformers.md](transformers.md).",
        "",
    ]
    return "\n".join([*lines, *_generation_part(records), *_perplexity_part(records)]) + "\n"


def _generation_part(records: Sequence[dict]) -> list[str]:
    found = next((r for r in records if r["part"] == "generation"), None)
    if found is None:
        return []
    lines = [
        f"## {found['new_tokens']:,} new tokens",
        "",
        f"After a prompt of {found['prompt']} tokens, budget {found['budget']}, interval "
        f"{found['interval']}: {found['evictions']} evictions. The two caches take steps in turns, "
        "so that they meet the same machine. Median step in ms, and the largest cache in MB:",
        "",
        "| new tokens | full cache | | bounded cache | | step, bounded / full |",
        "|---|---|---|---|---|---|",
    ]
    names = (FULL, DEFAULT_POLICY)
    for start in range(0, found["new_tokens"], BUCKET):
        part = slice(start, start + BUCKET)
        ms = {n: statistics.median(found["ms"][n][part]) for n in names}
        mb = {n: max(found["bytes"][n][part]) / 1e6 for n in names}
        lines.append(
            f"| {start + 1:,}-{start + BUCKET:,} | {ms[FULL]:.0f} | {mb[FULL]:.1f} | "
            f"{ms[DEFAULT_POLICY]:.0f} | {mb[DEFAULT_POLICY]:.1f} | "
            f"{ms[DEFAULT_POLICY] / ms[FULL]:.2f} |"
        )
    bounded_ms = found["ms"][DEFAULT_POLICY]
    evicting = sorted(bounded_ms)[-found["evictions"] :]
    lines += [
        "",
        f"Steps that evict are the slowest: {statistics.median(evicting):.0f} ms, one in "
        f"{found['interval']}.",
        "",
    ]
    return lines


def _perplexity_part(records: Sequence[dict]) -> list[str]:
    found = [r for r in records if r["part"] == "perplexity"]
    if not found:
        return []
    texts = list(dict.fromkeys(r["text"] for r in found))
    lines = [
        "## Perplexity over a long text",
        "",
        f"Texts of the test split, {TOKENS:,} tokens each, read {BLOCK} tokens at a time: a block",
        "attends to the cache and to itself, then the cache is evicted back to its budget. One",
        "text of each kind, so differences of a few percent mean nothing. A low perplexity asks",
        "for little but recent tokens: [results.md](results.md) has the tasks that ask for more.",
        "",
        "| entries kept | method | " + " | ".join(f"{t}" for t in texts) + " |",
        "|---|---|" + "---|" * len(texts),
    ]
    value = {(r["text"], r["method"], r["budget"]): math.exp(r["nll"]) for r in found}
    for budget in (0, *BUDGETS):
        names = [FULL] if budget == 0 else rivals()
        rows = [n for n in names if all((t, n, budget) in value for t in texts)]
        for name in sorted(rows, key=lambda n: sum(value[t, n, budget] for t in texts)):
            cells = " | ".join(f"{value[t, name, budget]:.2f}" for t in texts)
            kept = "all" if budget == 0 else str(budget)
            lines.append(f"| {kept} | {'full cache' if name == FULL else name} | {cells} |")
    return [*lines, "", "![Perplexity along the text](generation.png)", ""]


def draw(records: Sequence[dict], path: Path) -> None:
    """Perplexity by position and the time of a step, as one picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = (FULL, *rivals()[:3], "streaming_llm", "random")
    texts = list(dict.fromkeys(r["text"] for r in records if r["part"] == "perplexity"))
    figure, axes = plt.subplots(1, len(texts) + 1, figsize=(16, 4.5), layout="constrained")
    for axis, text in zip(axes, texts, strict=False):
        for record in records:
            wanted = record["part"] == "perplexity" and record["text"] == text
            if wanted and record["method"] in shown and record["budget"] in (0, BUDGETS[0]):
                ends = [SEGMENT * (i + 1) for i in range(len(record["segments"]))]
                axis.plot(ends, [math.exp(x) for x in record["segments"]], label=record["method"])
        axis.set(title=f"{text}, {BUDGETS[0]} entries", xlabel="token", ylabel="perplexity")
        axis.legend(fontsize=8)
    for record in records:
        if record["part"] == "generation":
            for name, ms in record["ms"].items():
                medians = [statistics.median(ms[i : i + BUCKET]) for i in range(0, len(ms), BUCKET)]
                axes[-1].plot([BUCKET * (i + 1) for i in range(len(medians))], medians, label=name)
            axes[-1].set(title="a step of decoding", xlabel="new token", ylabel="ms", ylim=0)
            axes[-1].legend(fontsize=8)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=80, format="png")
    plt.close(figure)


def read(path: Path) -> list[dict]:
    """The records of a file, none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(
    records: Path = Path("docs/measurements/bounded.jsonl"),
    only: str = "",
    out: Path = Path("docs"),
) -> None:
    """Measures what is missing and writes the page and its picture."""
    if only not in ("", "perplexity", "generation", "page"):
        raise typer.BadParameter(
            f"{only!r}, expected perplexity, generation or page", param_hint="only"
        )
    found = read(records)
    if only != "page":
        model, tokenizer = smollm2.load()

        def keep(record: dict) -> None:
            with records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            found.append(record)
            print({k: v for k, v in record.items() if not isinstance(v, (dict, list))}, flush=True)

        if only != "perplexity" and all(r["part"] != "generation" for r in found):
            keep(generation(model, tokenizer))
        if only != "generation":
            for record in perplexities(model, tokenizer, found):
                keep(record)
    with replacing(out / "generation.md") as draft:
        draft.write_text(page(found), encoding="utf-8")
    draw(found, out / "generation.png")


if __name__ == "__main__":
    typer.run(main)
