"""Makes the policy for SmolLM2-135M-Instruct that the package ships, from nothing:

    python -m python_ref.training.first_policy \\
        --out kvp_ext/policies/smollm2-135m-instruct.safetensors

Model and texts come from package registries. With `--evaluate` the policy is then compared with
other methods on test documents, whose templates, keys, values and haystacks training never saw.
`docs/first_policy.md` shows the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from python_ref.artifacts import cache_dir
from python_ref.data.documents import training_documents
from python_ref.data.facts import templates
from python_ref.data.sources import Text, dialogues, essays, novels
from python_ref.training.results import evaluation_documents, progress, table
from python_ref.training.traces import Trace, collect
from python_ref.training.train import Recipe, train

NEEDLES, PLAIN, DOCUMENT_SEED = 80, 30, 0


def all_texts() -> dict[str, list[Text]]:
    """The texts by kind."""
    return {"dialogue": dialogues(), "novel": novels(), "essay": essays()}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` default to the process's."""
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
    paths = collect(model, documents, folder, lambda items: progress(items, "traces"))
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
        "command": "make policy",
        "documents": {"needle": NEEDLES, "plain": PLAIN, "seed": DOCUMENT_SEED},
        "templates": len(templates("train")),
        "tokens": sum(len(document.context) for document in documents),
        "texts": "chitchat-dataset 0.9.0 (MIT), r-cran-janeaustenr, jargon-text (public domain)",
        "recipe": dataclasses.asdict(recipe),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    Policy.from_agent(agent, name=options.out.stem, provenance=provenance).save(options.out)
    print(f"wrote {options.out}, {options.out.stat().st_size / 1e6:.1f} MB")
    if options.evaluate:
        with options.evaluate.open("w", encoding="utf-8") as file:
            for task, tests in evaluation_documents(tokenizer, texts, "test").items():
                file.write(table(model, task, tests, agent) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
