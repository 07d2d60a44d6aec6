"""The measured tables of docs/methods.md: time, operators and memory of every way to score a cache.

    python bench/methods.py [--tokens 2048] [--rounds 5]

All score one cache of SmolLM2, in turns. Memory is what the process grows by at its peak.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kvp_ext
from kvp_ext.gates import gate_scores, gates, load_gate
from kvp_ext.integrations import smollm2
from python_ref.allocators import allocate, allocators
from python_ref.artifacts import replacing
from python_ref.data.mixture import documents
from python_ref.evaluation.contestants import by_method
from python_ref.evaluation.prefilled import Needs, Prefilled, prefill_document
from python_ref.evaluation.records import Record, read_records
from python_ref.evaluation.summary import summarise
from python_ref.methods import methods

PAGE = Path("docs/methods.md")
RECORDS = Path("docs/measurements/results.jsonl.gz")
BEGIN, END = "<!-- {}: made by `make methods` -->", "<!-- end -->"
KEEP = 0.25


M_MMAP_THRESHOLD = -3  # of malloc.h


class Operators(TorchDispatchMode):
    """Counts the operators that reach a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.is_view is False if hasattr(func, "is_view") else 1
        return func(*args, **(kwargs or {}))


def peak_mb(work: Callable[[], Any]) -> float:
    """How far the process grows at the peak of some work, in MB."""
    status = Path("/proc/self/status")

    def read(field: str) -> int:
        lines = status.read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1])

    # The C library would serve a call from what the last one freed: nothing would grow.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = read("VmRSS")
    work()
    return max(0, read("VmHWM") - before) / 1024


def scorers(item: Prefilled) -> dict[str, Callable[[], Tensor]]:
    """All that can score the cache, by name."""
    k, v = (x.unsqueeze(1).contiguous() for x in (item.k, item.v))
    pos = torch.arange(k.shape[3])
    policy = kvp_ext.load_policy("smollm2-135m-instruct")
    found: dict[str, Callable[[], Tensor]] = {
        "kvp": lambda: kvp_ext.score(k, v, pos, policy=policy),
        "kvp, plain PyTorch": lambda: kvp_ext.score(k, v, pos, policy=policy, backend="reference"),
    }
    if gates():
        gate = load_gate(gates()[0])
        found["gate"] = lambda: gate_scores(gate, item.hidden.unsqueeze(1), pos)
    for name, method in methods().items():
        if method.decode:
            contestant = by_method(name)
            # H2O in the evaluation is summed up while the model runs; here by itself.
            if name == "h2o":
                found[name] = lambda: methods()["h2o"](k=item.k, q=item.q)
            else:
                found[name] = lambda contestant=contestant: contestant.score(item)
    return found


def measure(item: Prefilled, rounds: int) -> dict[str, dict[str, float]]:
    """Median ms, growth in MB and operators a layer of every scorer, in turns."""
    work = scorers(item)
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            started = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started))
    layers = item.k.shape[0]
    result = {}
    for name, run in work.items():
        with Operators() as operators:
            run()
        result[name] = {
            "ms": statistics.median(times[name]),
            "mb": peak_mb(run),  # slows what follows, so only after all times
            "operators": operators.count / layers,
        }
    return result


def measure_allocators(item: Prefilled, rounds: int) -> dict[str, float]:
    """Median ms of sharing a budget of a quarter."""
    scores = methods()["snapkv"](k=item.k, q=item.q, pinned=False).unsqueeze(1)
    times: dict[str, list[float]] = {name: [] for name in allocators()}
    for _ in range(rounds):
        for name in times:
            started = time.perf_counter()
            allocate(name, scores, int(KEEP * scores.shape[-1]))
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(ms) for name, ms in times.items()}


def measure_eviction(item: Prefilled, rounds: int) -> float:
    """Median ms of selection and compaction by given scores."""
    scores = methods()["knorm"](k=item.k).unsqueeze(1)
    times = []
    for _ in range(rounds):
        k, v, own = (x.clone() for x in (item.k.unsqueeze(1), item.v.unsqueeze(1), scores))
        started = time.perf_counter()
        kvp_ext.evict_(k, v, torch.arange(k.shape[3]), int(KEEP * k.shape[3]), scores=own)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


# ---- the page ----------------------------------------------------------------------------------


def cost_table(found: dict[str, Any]) -> str:
    """Time, memory and operators."""
    item = found["cache"]
    base = found["scorers"]["kvp"]["ms"]
    held = item["cache_mb"]
    lines = [
        f"One cache of SmolLM2: {item['layers']} layers x {item['heads']} heads, "
        f"{item['tokens']:,} tokens, {held:.0f} MB, in fp32 on two CPU cores; medians, in turns. "
        f"Selection and compaction to a quarter come on top for all: {found['evict_ms']:.1f} ms.",
        "",
        "| scores by | ms | against kvp | memory at its peak, MB | operators a layer |",
        "|---|---|---|---|---|",
    ]
    for name, row in sorted(found["scorers"].items(), key=lambda pair: pair[1]["ms"]):
        operators = "one call for all" if name == "kvp" else f"{row['operators']:.0f}"
        figures = [f"{row['ms']:.1f}", f"{row['ms'] / base:.2f} x", f"{row['mb']:.0f}", operators]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    shares = ", ".join(f"{name} {ms:.1f}" for name, ms in found["allocators"].items())
    return "\n".join([*lines, "", f"Sharing a budget, ms: {shares}."])


def quality_table(records: list[Record]) -> str:
    """What is left of the whole cache's answers, from the records of docs/results.md."""
    wanted = [
        ("Needles, templates never seen, 500 tokens", "needles 500"),
        ("Needles, templates never seen, 1,000 tokens", "needles 1,000"),
        ("Dialogue, 1,000 tokens", "dialogue"),
    ]
    cells: dict[tuple[str, str, float], str] = {}
    names: dict[str, float] = {}
    for task, label in wanted:
        some = [r for r in records if r.task == task and r.allocator == "uniform"]
        for summary in summarise(some, reference="kvp"):
            if not summary.primary:
                continue
            for cell in summary.cells:
                share = cell.share if cell.share is not None else float("nan")
                cells[label, cell.method, cell.budget] = f"{share:.2f}"
                if (label, cell.budget) == (wanted[0][1], 0.25):
                    names[cell.method] = share
    budgets = (0.25, 0.125)
    head = [f"{label}, {100 * b:g}%" for _, label in wanted for b in budgets]
    lines = [
        "Share of the whole cache's answers (needles: exact match, higher is better) and of its",
        "perplexity (dialogue, lower is better), the question after the eviction, every head",
        "keeping the same number. Test documents of [results.md](results.md), which has the",
        "intervals.",
        "",
        "| method | " + " | ".join(head) + " |",
        "|---" * (len(head) + 1) + "|",
    ]
    for name in sorted(names, key=lambda n: -names[n]):
        row = [cells.get((label, name, b), "") for _, label in wanted for b in budgets]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def put(page: str, part: str, text: str) -> str:
    """The page with the text of a part between its marks."""
    begin = BEGIN.format(part)
    before, mark, rest = page.partition(begin)
    if not mark or END not in rest:
        raise ValueError(f"page: has no part {begin} … {END}, expected one")
    return f"{before}{begin}\n\n{text}\n\n{rest[rest.index(END) :]}"


def unpacked(path: Path) -> list[Record]:
    """The records of a packed file."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "records.jsonl"
        file.write_bytes(gzip.decompress(path.read_bytes()))
        return read_records(file)


def main(
    tokens: int = 2048,
    rounds: int = 5,
    out: Path = PAGE,
    measured: Path = Path("docs/measurements/methods.json"),
    records: Path = RECORDS,
    again: bool = True,
) -> None:
    """Measures, and writes the tables of the page; --no-again: from what was measured before."""
    if again:
        model, tokenizer = smollm2.load()
        document = next(
            iter(documents(tokenizer, {"novel": 1.0}, 1, lengths=(tokens, tokens), split="dev"))
        )
        item = prefill_document(model, document, Needs(window=None, hidden=True))
        found: dict[str, Any] = {
            "cache": {
                "layers": item.k.shape[0],
                "heads": item.k.shape[1],
                "tokens": tokens,
                "cache_mb": (item.k.nbytes + item.v.nbytes) / 1e6,
            },
            "scorers": measure(item, rounds),
            "allocators": measure_allocators(item, rounds),
            "evict_ms": measure_eviction(item, rounds),
        }
        with replacing(measured) as draft:
            draft.write_text(json.dumps(found, indent=1) + "\n")
    found = json.loads(measured.read_text())
    page = put(out.read_text(encoding="utf-8"), "cost", cost_table(found))
    page = put(page, "quality", quality_table(unpacked(records)))
    with replacing(out) as draft:
        draft.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
