"""What can be compared: methods and policies, by the text that names them.

    snapkv              a method of `python_ref.methods`
    snapkv:pool=21      with options
    kvp                 the default policy
    kvp:mine.safetensors, kvp:smollm2-135m-instruct
                        a policy file, or a shipped policy by name
    gate, gate:mine.safetensors
                        a retention gate, likewise

Every contestant only ranks. What is kept whatever its rank, the first and last entries of the
cache, is the same for all, so a method's own pins do not count where the method can do without:
`snapkv` here ranks the entries of its window like all others. `lagkv` has no score for its last
partition and the remainder, so they stay on top.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

import kvp_ext
from kvp_ext.active import DEFAULT_POLICY
from kvp_ext.gates import RetentionGate, gate_scores, load_gate
from python_ref.agents import Agent
from python_ref.evaluation.prefilled import Needs, Prefilled
from python_ref.evaluation.records import FULL
from python_ref.methods import methods
from python_ref.model_info import ModelInfo
from python_ref.rope import output_grams, rope_of
from python_ref.training.traces import document_digest

GEOMETRY = ("layers", "kv_heads", "head_dim_k", "head_dim_v")

# Scores [L, H, n] of a context's entries, higher = keep.
Scorer = Callable[[Prefilled], Tensor]


@dataclass(frozen=True)
class Contestant:
    """A ranking of cached entries.

    Attributes:
        name: in records and tables, also the text that `contestant` takes.
        score: the ranking.
        needs: what it wants of the prefill.
        fingerprint: of a policy's weights, since a file may change; otherwise empty.
        geometry: of the model that a policy was made for, as in `ModelInfo`; otherwise empty.
    """

    name: str
    score: Scorer
    needs: Needs = field(default_factory=Needs)
    fingerprint: str = ""
    geometry: Mapping[str, int] = field(default_factory=dict)


def contestants(texts: Sequence[str], *, default_policy: str = DEFAULT_POLICY) -> list[Contestant]:
    """The contestants that `texts` name, each once; "all" is the default policy, the default gate
    and every method.

    "full", the whole cache, is part of every evaluation and may be named or not. Errors as for
    `contestant`.
    """
    names: dict[str, None] = {}
    for text in texts:
        names.update(dict.fromkeys(["kvp", "gate", *methods()] if text == "all" else [text]))
    names.pop(FULL, None)
    return [contestant(name, default_policy=default_policy) for name in names]


def contestant(text: str, *, default_policy: str = DEFAULT_POLICY) -> Contestant:
    """The contestant that `text` names, see the head of this file.

    Raises:
        ValueError: an unknown name or option, or a value that the option does not take.
        FileNotFoundError: a policy file that does not exist.
    """
    name, _, rest = text.partition(":")
    if name == "kvp":
        return by_policy(kvp_ext.load_policy(rest or default_policy), text)
    if name == "gate":
        return by_gate(load_gate(rest or default_policy), text)
    if name not in methods():
        known = ", ".join(["kvp", "kvp:FILE", "gate", "gate:FILE", *methods()])
        raise ValueError(f"method: got {text!r}, expected one of {known}")
    given = [pair.partition("=") for pair in rest.split(",")] if rest else []
    return by_method(name, text, **_options(name, text, {key: value for key, _, value in given}))


def check_geometry(compared: Sequence[Contestant], model: ModelInfo) -> None:
    """Refuses a policy that was made for another model.

    Raises:
        ValueError: naming the policy and what does not fit.
    """
    for one in compared:
        for name, size in one.geometry.items():
            if size != getattr(model, name):
                raise ValueError(
                    f"method: the policy {one.name!r} is for {name} {size}, expected "
                    f"{getattr(model, name)} as in {model.name}"
                )


def by_policy(policy: kvp_ext.Policy, name: str = "kvp") -> Contestant:
    """A policy as kvp-ext evaluates it."""

    def score(item: Prefilled) -> Tensor:
        # On the CPU, where a backend is always there.
        k, v = (x.cpu().unsqueeze(1) for x in (item.k, item.v))
        return kvp_ext.score(k, v, torch.arange(k.shape[3]), policy=policy).squeeze(1)

    weights = _fingerprint([policy.packed(), policy.folded.positions])
    geometry = {field: getattr(policy, field) for field in GEOMETRY}
    return Contestant(name, score, fingerprint=weights, geometry=geometry)


def by_agent(agent: Agent, name: str = "kvp") -> Contestant:
    """A policy in training, as `python_ref.agents` defines it."""

    @torch.no_grad()
    def score(item: Prefilled) -> Tensor:
        n = item.k.shape[2]
        pos = torch.arange(n, device=item.k.device)
        scores: Tensor = agent(item.k.unsqueeze(1).float(), item.v.unsqueeze(1).float(), pos, n)
        return scores.squeeze(1)

    weights = _fingerprint([tensor for _, tensor in sorted(agent.state_dict().items())])
    return Contestant(name, score, fingerprint=weights)


def by_gate(gate: RetentionGate, name: str = "gate") -> Contestant:
    """A retention gate, by what is left of every token when the next one comes."""

    def score(item: Prefilled) -> Tensor:
        pos = torch.arange(item.k.shape[2], device=item.hidden.device)
        return gate_scores(gate.to(item.hidden.device), item.hidden.unsqueeze(1), pos).squeeze(1)

    weights = _fingerprint([tensor for _, tensor in sorted(gate.state_dict().items())])
    geometry = {"layers": gate.layers, "kv_heads": gate.kv_heads}
    return Contestant(name, score, Needs(hidden=True), weights, geometry)


def _fingerprint(weights: Sequence[Tensor]) -> str:
    """What tells one set of weights from another in records."""
    digest = hashlib.sha256()
    for tensor in weights:
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def by_method(name: str, label: str | None = None, **options: Any) -> Contestant:
    """A method of `python_ref.methods`; the options are those of `method_options`."""
    label = label or name
    if name in _OWN:
        score, needs = _OWN[name](**options)
        return Contestant(label, score, needs)
    method = methods()[name]
    if "pinned" in method.options:
        options["pinned"] = False
    weights = [(part, take) for part, take in _WEIGHTS.items() if part in method.reads]

    def ranked(item: Prefilled) -> Tensor:
        given = {part: _of_model(item.model, part, take) for part, take in weights}
        return method(k=item.k, v=item.v, q=item.q, **given, **options)

    return Contestant(label, ranked, Needs(window=method.window(options)))


# What methods read of a model, computed once for each.
_WEIGHTS: dict[str, Callable[[Any], Any]] = {"rope": rope_of, "gram": output_grams}
_known: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def _of_model(model: Any, part: str, take: Callable[[Any], Any]) -> Any:
    parts = _known.setdefault(model, {})
    if part not in parts:
        parts[part] = take(model)
    return parts[part]


def method_options(name: str) -> dict[str, Any]:
    """The options of a method and their defaults."""
    if name in _OWN:
        parameters = inspect.signature(_OWN[name]).parameters.values()
        return {p.name: p.default for p in parameters}
    # Blocks do not change the result, and nobody's own pins count here.
    return {k: v for k, v in methods()[name].options.items() if k not in ("block", "pinned")}


def _options(name: str, text: str, given: dict[str, str]) -> dict[str, Any]:
    """The options given as text, as values of the type of their default."""
    defaults = method_options(name)
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise ValueError(f"method: {text!r} has option {key!r}, expected one of: {known}")
        if key == "pool" and value == "none":
            values[key] = 1
        else:
            values[key] = _option(text, key, value, type(defaults[key]))
    return values


def _option(text: str, key: str, value: str, kind: type) -> Any:
    """An option's value, given as text, as one of its kind."""
    if kind is str:
        return value
    if kind is bool:
        if value in ("true", "false"):
            return value == "true"
        raise ValueError(f"method: {text!r} has {key}={value!r}, expected true or false")
    try:
        if kind is float:
            return float(value)
        if value.isdecimal():
            return int(value)
    except ValueError:
        pass
    expected = "a number" if kind is float else "a whole number"
    raise ValueError(f"method: {text!r} has {key}={value!r}, expected {expected}")


# ---- methods that take something else than keys, values and the last queries -------------------


def _oracle() -> tuple[Scorer, Needs]:
    """The true utility of all branches."""
    return lambda item: item.utility, Needs()


def _h2o() -> tuple[Scorer, Needs]:
    """H2O of the whole prefill: attention received, per query that could see the entry."""

    def score(item: Prefilled) -> Tensor:
        n = item.received.shape[-1]
        return item.received / torch.arange(n, 0, -1, device=item.received.device)

    return score, Needs(received=True)


def _random(seed: int = 0) -> tuple[Scorer, Needs]:
    """Noise that differs between documents."""

    def score(item: Prefilled) -> Tensor:
        document = int(document_digest(item.document)[:8], 16)
        return methods()["random"](k=item.k, seed=document + seed)

    return score, Needs()


def _snapkv(window: int = 64, pool: int = 5) -> tuple[Scorer, Needs]:
    """Attention from the last `window` queries, average-pooled over `pool` neighbours."""
    if window < 1:
        raise ValueError(f"window: got {window}, expected at least 1")
    if pool < 1 or pool % 2 == 0:
        raise ValueError(f"pool: got {pool}, expected 'none' or an odd number")
    ranked = partial(methods()["snapkv"], window=window, kernel=pool, pinned=False)
    return lambda item: ranked(k=item.k, q=item.q), Needs(window=window)


_OWN: dict[str, Callable[..., tuple[Scorer, Needs]]] = {
    "oracle": _oracle,
    "h2o": _h2o,
    "random": _random,
    "snapkv": _snapkv,
}


def common_needs(contestants: Sequence[Contestant]) -> Needs:
    """What a prefill keeps that serves all of them."""
    windows = [c.needs.window for c in contestants]
    return Needs(
        window=None if None in windows else max((w for w in windows if w is not None), default=0),
        received=any(c.needs.received for c in contestants),
        hidden=any(c.needs.hidden for c in contestants),
    )
