"""Trains a small policy in one of several processes; for the tests beside it."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from python_ref.training.distributed import Parallel
from python_ref.training.traces import Trace
from python_ref.training.train import Phase, Recipe, Trainer

RECIPE = Recipe(
    (
        Phase(steps=7, items=4, tokens=12),
        Phase("rloo", steps=6, items=4, tokens=10, learning_rate=1e-3, options={"rankings": 3}),
        Phase("rloo_batch", steps=3, items=4, tokens=10, learning_rate=1e-3),
        Phase("exact", steps=5, items=4, tokens=10, unbiased=True, options={"others": 6}),
    ),
    agent={"hidden": 16},
    average=0.8,
)


class Stopped(Exception):  # noqa: N818
    pass


def stop(phase: str, step: int, loss: float) -> None:
    if (phase, step) == ("rloo", 4):
        raise Stopped


def trace(seed: int, n: int) -> Trace:
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(3, 2, n, 4, generator=generator) for _ in range(2))
    utility = k.norm(dim=-1).exp() / n
    utilities = (utility[..., : n // 2].contiguous(), utility)
    return Trace("t", k.half(), v.half(), (n // 2, n), utilities, torch.arange(n) < 4)


def trainer(parallel: Parallel, **options) -> Trainer:
    traces = [trace(i, 40 + 5 * i) for i in range(5)]
    dev = [trace(9, 40), trace(10, 50), trace(11, 60)]
    return Trainer(traces, RECIPE, dev=dev, parallel=parallel, **options)


def train(path: Path, parallel: Parallel, **options) -> None:
    """Train; the main process writes the agent, what was drawn and what was measured."""
    own = trainer(parallel, **options)
    seen = []
    read = own.corpus.read

    def recorded(items, layers, device):
        if len(items) <= 4:  # the standardisation takes more
            seen.append(
                torch.stack([1000 * i.trace + 500 * i.split + i.index.sum() for i in items])
            )
        return read(items, layers, device)

    own.corpus.read = recorded
    agent = own.run()
    drawn = parallel.every_item(torch.stack(seen))
    assert own.dev_cost is not None
    measured = {"dev": own.dev_cost.plain, "pinned": own.dev_cost.pinned, "seen": drawn}
    if parallel.is_main:
        save_file(agent.state_dict() | measured, path)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    data = Parallel.start("data")
    train(folder / "data.safetensors", data)
    heads = replace(data, mode="heads")
    train(folder / "heads.safetensors", heads)
    try:
        trainer(heads, checkpoint=folder / "state", checkpoint_every=2).run(stop)
    except Stopped:
        data.stop()


if __name__ == "__main__":
    main()
