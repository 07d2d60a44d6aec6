"""How heads share a budget, by the text that names it.

uniform             an allocator of `python_ref.allocators`
pyramid:beta=5      with options
share               the shares that came with the calibrated default policy
share:mine.safetensors, share:NAME
                    those of a policy file or of a shipped policy, see `kvp-ext calibrate`
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

import kvp_ext
from kvp_ext.active import DEFAULT_POLICY
from python_ref.allocators import Allocator, allocate, allocators, comparable_span, learned_shares
from python_ref.model_info import ModelInfo

DEFAULT_SHARES = f"{DEFAULT_POLICY}-calibrated"


@dataclass(frozen=True)
class Allocation:
    """A way to share a budget, with its options.

    Attributes:
        name: in records and tables, also the text that `allocation` takes.
        allocator: that shares.
        options: of the allocator.
        fingerprint: of learned shares, since a file may change; otherwise empty.
        rows: layers and KV heads of the model that shares were learned for; otherwise None.
    """

    name: str
    allocator: Allocator
    options: Mapping[str, float] = field(default_factory=dict)
    fingerprint: str = ""
    rows: tuple[int, int] | None = None

    def budgets(self, scores: Tensor, budget: int, *, sinks: int, recent: int) -> Tensor:
        """Budgets int64 [L, H] of rows with scores [L, H, n] that keep `budget` on average."""
        rules = {"sinks": sinks, "recent": recent}
        return allocate(self.allocator, scores.unsqueeze(1), budget, **rules, **self.options)[:, 0]


UNIFORM = Allocation("uniform", allocators()["uniform"])


def allocations(texts: Sequence[str]) -> list[Allocation]:
    """The allocations that `texts` name, each once; "all" is every allocator, "uniform" first, and
    "share".

    Errors as for `allocation`.
    """
    names: dict[str, None] = {}
    for text in texts:
        every = [UNIFORM.name, *allocators(), "share"]
        names.update(dict.fromkeys(every if text == "all" else [text]))
    return [allocation(name) for name in names]


def allocation(text: str) -> Allocation:
    """The allocation that `text` names, see the head of this file.

    Raises:
        ValueError: an unknown name or option, a value that is not a number, or a policy that
            carries no shares.
        FileNotFoundError: a policy file that does not exist.
    """
    name, _, rest = text.partition(":")
    if name == "share":
        return _shares(text, rest or DEFAULT_SHARES)
    if name not in allocators():
        known = ", ".join([*allocators(), "share", "share:FILE"])
        raise ValueError(f"allocator: got {text!r}, expected one of {known}")
    allocator = allocators()[name]
    options = {}
    for pair in rest.split(",") if rest else []:
        key, _, value = pair.partition("=")
        if key not in allocator.options:
            known = ", ".join(allocator.options) or "none"
            raise ValueError(f"allocator: {text!r} has option {key!r}, expected one of: {known}")
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = math.nan
        if not math.isfinite(options[key]):
            raise ValueError(f"allocator: {text!r} has {key}={value!r}, expected a number")
    return Allocation(text, allocator, options)


def _shares(text: str, policy: str) -> Allocation:
    table = kvp_ext.load_policy(policy).provenance.get("shares")
    if table is None:
        raise ValueError(
            f"allocator: the policy {policy!r} carries no shares, expected one made by "
            "kvp-ext calibrate"
        )
    allocator = learned_shares(table, text)
    first = next(iter(table.values()))
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
    return Allocation(text, allocator, fingerprint=digest, rows=(len(first), len(first[0])))


def check_rows(compared: Sequence[Allocation], model: ModelInfo) -> None:
    """Refuses shares that were learned for another model.

    Raises:
        ValueError: naming the shares and what does not fit.
    """
    expected = (model.layers, model.kv_heads)
    for one in compared:
        if one.rows is not None and one.rows != expected:
            raise ValueError(
                f"allocator: the shares {one.name!r} are for {one.rows[0]} layers x {one.rows[1]} "
                f"KV heads, expected {expected[0]} x {expected[1]} as in {model.name}"
            )


def unlike_scores(methods: Sequence[str], compared: Sequence[Allocation]) -> list[str]:
    """Sentences on allocators that let scores compete which are no common scale.

    Args:
        methods: contestants by name, "kvp" and "kvp:FILE" among them.
    """
    spans = {method: _span(method) for method in methods}
    sentences = []
    for one in compared:
        wanted = {"layer": ("layer", "model"), "model": ("model",)}.get(one.allocator.compares)
        short = [method for method, span in spans.items() if wanted and span not in wanted]
        if short:
            sentences.append(
                f"{one.name} compares scores across a {one.allocator.compares}; those of "
                f"{', '.join(short)} are only on one scale within a row"
            )
    return sentences


def _span(method: str) -> str:
    name, _, rest = method.partition(":")
    calibrated = False
    if name == "kvp":
        calibrated = "calibration" in kvp_ext.load_policy(rest or DEFAULT_POLICY).provenance
    return comparable_span(name, calibrated=calibrated)
