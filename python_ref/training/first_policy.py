"""Makes the policy for SmolLM2-135M-Instruct that the package ships, from nothing:

    python -m python_ref.training.first_policy --out kvp_ext/policies/smollm2-135m-instruct.safetensors

Model and texts come from package registries. With `--evaluate` the policy is then compared with
other methods on test documents, whose templates, keys, values and haystacks training never saw.
`docs/first_policy.md` shows the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

from python_ref import evaluation
from python_ref.agents import SmallAgent
from python_ref.artifacts import cache_dir
from python_ref.training.documents import (
    Document,
    haystack,
    needle_document,
    plain_document,
    training_documents,
)
from python_ref.training.facts import Template, templates
from python_ref.training.sources import Text, dialogues, essays, novels, passage
from python_ref.training.traces import Trace, collect
from python_ref.training.train import Recipe, train

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NEEDLES, PLAIN, DOCUMENT_SEED = 80, 30, 0
METHODS = ("streaming_llm", "knorm", "keydiff", "snapkv", "tova", "oracle")
FRACTIONS = (0.5, 0.25, 0.125)

T = TypeVar("T")
Texts = Mapping[str, Sequence[Text]]


def all_texts() -> dict[str, list[Text]]:
    return {"dialogue": dialogues(), "novel": novels(), "essay": essays()}


def needle_tests(
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    split: str,
    choices: Sequence[Template],
    count: int,
    seed: int,
    tokens: tuple[int, int] = (450, 900),
) -> list[Document]:
    """Documents with four needles of different templates each, in the haystacks of `split`."""
    rng = random.Random(seed)
    documents = []
    for i in range(count):
        kind = ["noise", *texts][i % (1 + len(texts))]
        length = rng.randint(*tokens)
        sentences = haystack(kind, texts, split, 6 * length, rng)
        chosen = rng.sample(list(choices), 4)
        documents.append(needle_document(tokenizer, kind, sentences, chosen, length, rng))
    return documents


def plain_tests(
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    split: str,
    kinds: Sequence[str],
    count: int,
    seed: int,
    context: int = 1000,
    continuation: int = 300,
) -> list[Document]:
    """`count` windows of running text, the kinds taking turns."""
    rng = random.Random(seed)
    documents = []
    for i in range(count):
        kind = kinds[i % len(kinds)]
        own = [text for text in texts[kind] if text.split == split]
        text = passage(own, 7 * (context + continuation), rng)
        documents.append(plain_document(tokenizer, kind, text, context, continuation))
    return documents


def evaluation_documents(
    tokenizer: PreTrainedTokenizerBase, texts: Texts, split: str
) -> dict[str, list[Document]]:
    """The tasks of the results table, on the texts of "dev" or "test"."""
    return {
        "needle, unseen templates": needle_tests(
            tokenizer, texts, split, templates(split), 30, seed=21
        ),
        "needle, seen templates": needle_tests(
            tokenizer, texts, split, templates("train"), 16, seed=22
        ),
        "dialogue": plain_tests(tokenizer, texts, split, ["dialogue"], 8, seed=23),
        "novels and essays": plain_tests(tokenizer, texts, split, ["novel", "essay"], 4, seed=24),
    }


def report(model: object, tasks: Mapping[str, Sequence[Document]], agent: SmallAgent) -> str:
    """Markdown: one table per task, methods against the fraction kept."""
    scorers = {name: evaluation.by_method(name) for name in METHODS}
    scorers = {"kvp": evaluation.by_agent(agent), **scorers}
    parts = []
    for task, documents in tasks.items():
        prefilled = [
            evaluation.prefill_document(model, document)  # type: ignore[arg-type]
            for document in _progress(documents, f"prefill: {task}")
        ]
        results = evaluation.evaluate(
            model,  # type: ignore[arg-type]
            _progress(prefilled, f"evaluate: {task}"),
            scorers,
            FRACTIONS,
        )
        full = results["full", 1.0]
        needle = task.startswith("needle")
        score = evaluation.exact_match if needle else evaluation.perplexity
        parts.append(
            f"### {task}: {'exact match' if needle else 'perplexity'}, "
            f"full cache {score(full):.{2 if needle else 1}f}, "
            f"n = {len(full)} {'questions' if needle else 'windows'}, {len(documents)} contexts of "
            f"{min(len(d.context) for d in documents)} to "
            f"{max(len(d.context) for d in documents)} tokens\n"
        )
        parts.append(
            "| method | " + " | ".join(f"{f:.1%} kept" for f in FRACTIONS) + " | cost/optimal |"
        )
        parts.append("|---|" + "---|" * (len(FRACTIONS) + 1))
        for name, scorer in scorers.items():
            cells = []
            for fraction in FRACTIONS:
                answers = results[name, fraction]
                cells.append(f"{score(answers):.{2 if needle else 1}f}")
                if needle and name == "kvp":
                    hits = sum(answer.correct for answer in answers)
                    low, high = evaluation.wilson_interval(hits, len(answers))
                    cells[-1] += f" ({low:.2f} to {high:.2f})"
            ratio = evaluation.cost_ratio(scorer, prefilled)
            parts.append(f"| {name} | " + " | ".join(cells) + f" | {ratio:.2f} |")
        parts.append("")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m python_ref.training.first_policy", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="the policy file to write")
    parser.add_argument(
        "--traces",
        type=Path,
        help="folder of traces; what is there is used, what is missing is made "
        "[default: in the cache folder]",
    )
    parser.add_argument("--evaluate", type=Path, metavar="MARKDOWN", help="write the test results")
    options = parser.parse_args(arguments)
    folder = options.traces or cache_dir() / "traces" / "smollm2-first-policy"

    from kvp_ext import Policy
    from kvp_ext.integrations import smollm2

    model, tokenizer = smollm2.load()
    texts = all_texts()
    documents = training_documents(
        tokenizer, texts, templates("train"), needles=NEEDLES, plain=PLAIN, seed=DOCUMENT_SEED
    )
    started = time.monotonic()
    paths = collect(model, documents, folder, lambda items: _progress(items, "traces"))
    traced = time.monotonic()
    recipe = Recipe()
    bar = tqdm(total=recipe.steps + recipe.ranking_steps, desc="train", file=sys.stderr)

    def advance(phase: str, step: int, loss: float) -> None:
        bar.update()
        if step % 20 == 0:
            bar.set_postfix_str(f"{phase} loss {loss:.3f}")

    agent = train([Trace.load(path) for path in paths], recipe, advance)
    bar.close()
    trained = time.monotonic()
    print(f"traces {traced - started:.0f} s, training {trained - traced:.0f} s")

    provenance = {
        "model": f"SmolLM2-135M-Instruct ({smollm2.PACKAGE}, sha256 {smollm2.GGUF_SHA256})",
        "command": "python -m python_ref.training.first_policy",
        "documents": {"needle": NEEDLES, "plain": PLAIN, "seed": DOCUMENT_SEED},
        "templates": len(templates("train")),
        "tokens": sum(len(document.context) for document in documents),
        "texts": "chitchat-dataset 0.9.0 (MIT), r-cran-janeaustenr, jargon-text (public domain)",
        "recipe": dataclasses.asdict(recipe),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    Policy.from_agent(agent, provenance=provenance).save(options.out)
    print(f"wrote {options.out}, {options.out.stat().st_size / 1e6:.1f} MB")
    if options.evaluate:
        tables = report(model, evaluation_documents(tokenizer, texts, "test"), agent)
        options.evaluate.write_text(tables, encoding="utf-8")
        print(tables)


def _progress(items: Iterable[T], label: str) -> Iterator[T]:
    return iter(tqdm(items, desc=label, file=sys.stderr))


if __name__ == "__main__":
    main()
