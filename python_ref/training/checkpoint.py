"""Checkpoints: one safetensors file that holds tensors and, as JSON in its metadata, the rest.

A checkpoint says what it is of: the recipe, the traces and the geometry. Training goes on from it
only with the same, so that what comes out is what an uninterrupted training would have given. How
many processes train, and how, is not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from python_ref.artifacts import replacing

FORMAT = "kvp-training"
VERSION = 1
NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A training between two steps.

    Attributes:
        config: JSON values that decide what the training gives.
        phase, step: the next step to take, counted from 0; a phase may be one past the last.
        seconds: of training so far.
        tensors: of the agent, and within a phase of its optimiser.
    """

    config: Mapping[str, Any]
    phase: int
    step: int
    seconds: float
    tensors: Mapping[str, Tensor]

    def save(self, folder: Path) -> Path:
        """Replace the folder's checkpoint, in one rename."""
        path = folder / NAME
        state = {"phase": self.phase, "step": self.step, "seconds": self.seconds}
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "config": json.dumps(self.config),
            "state": json.dumps(state),
        }
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
        with replacing(path) as draft:
            save_file(tensors, draft, metadata=metadata)
        return path

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """Read the folder's checkpoint.

        Raises:
            FileNotFoundError: there is none.
            ValueError: the file is cut short or something else.
        """
        path = folder / NAME
        if not path.is_file():
            raise FileNotFoundError(f"checkpoint: there is no {path}")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if (metadata.get("format"), metadata.get("version")) != (FORMAT, str(VERSION)):
                    raise ValueError(
                        f"checkpoint {path}: format and version are {metadata.get('format')!r} and "
                        f"{metadata.get('version')!r}, expected {FORMAT!r} and '{VERSION}'"
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                config = json.loads(metadata["config"])
                state = json.loads(metadata["state"])
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(
                f"checkpoint {path} is malformed or cut short ({error}); remove it to start anew"
            ) from error
        return cls(config, state["phase"], state["step"], state["seconds"], tensors)

    def check(self, config: Mapping[str, Any], folder: Path) -> None:
        """Raise a ValueError that names what differs from the ``config`` to go on with."""
        before, now = dict(flatten(self.config)), dict(flatten(_json_values(config)))
        differences = [
            f"{key} was {before.get(key, 'absent')!r}, now {now.get(key, 'absent')!r}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        ]
        if differences:
            raise ValueError(
                f"checkpoint {folder / NAME} is of another training: {'; '.join(differences)}"
            )


def flatten(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of JSON values by path, for example ("recipe.phases[0].steps", 400)."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from flatten(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from flatten(inner, f"{key}[{i}]")
    else:
        yield key, value


def _json_values(value: Any) -> Any:
    """As JSON would give it back."""
    return json.loads(json.dumps(value))


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name starts with ``prefix``, by the rest of the name."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def slice_layers(tensors: Mapping[str, Tensor], layers: slice) -> dict[str, Tensor]:
    """Some layers of tensors [L, ...]."""
    return {name: torch.as_tensor(t)[layers].contiguous() for name, t in tensors.items()}
