"""Safetensors files of one kind: written whole or not at all, and checked before they are believed.

Metadata are strings: `format` and `format_version`, and JSON objects. Everything that a file says
of itself is checked against its tensors' headers before any weight is read, so a file that lies
about its sizes allocates nothing. Never pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from python_ref.artifacts import replacing

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    Attributes:
        where: kind and path, for messages.
        metadata: as they stand in the file.
    """

    where: str
    metadata: Mapping[str, str]

    def error(self, message: str) -> ValueError:
        """An error that names the file."""
        return ValueError(f"{self.where}: {message}")

    def text(self, key: str) -> str:
        """A text; empty if there is none."""
        return self.metadata.get(key, "")

    def json(self, key: str) -> dict[str, Any]:
        """A JSON object."""
        try:
            value = json.loads(self.metadata[key])
        except (KeyError, ValueError, RecursionError) as error:
            raise self.error(f"metadata {key!r} is missing or not JSON") from error
        if not isinstance(value, dict):
            raise self.error(f"metadata {key!r} is not a JSON object")
        return value


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        what: in messages, such as "policy file".
        format, version: in the metadata.
        dtypes: of tensors that are accepted, as safetensors names them.
    """

    what: str
    format: str
    version: int
    dtypes: tuple[str, ...]

    def write(
        self,
        path: str | PathLike[str],
        tensors: Mapping[str, Tensor],
        metadata: Mapping[str, str | Mapping[str, Any]],
    ) -> None:
        """Writes a file, whole or not at all; metadata that are not texts as JSON."""
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
        texts |= {"format": self.format, "format_version": str(self.version)}
        with replacing(Path(path)) as draft:
            # Not save_file, which makes files that only their owner may read.
            draft.write_bytes(save(dict(tensors), metadata=texts))

    def read(
        self,
        path: str | PathLike[str],
        shapes: Callable[[Header], Shapes],
        *,
        device: torch.device | str = "cpu",
    ) -> tuple[Header, dict[str, Tensor]]:
        """The header and the tensors of a file.

        Args:
            shapes: of all tensors that belong in the file, from its header.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not a file of this kind, a newer format, or contents that do not fit.
        """
        path = Path(path)
        where = f"{self.what} {path}"
        if not path.is_file():
            raise FileNotFoundError(f"{where} does not exist")
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                header = Header(where, file.metadata() or {})
                self._check_format(header)
                expected = shapes(header)
                self._check_tensors(header, file, expected)
                tensors = {name: file.get_tensor(name) for name in expected}
        except SafetensorError as error:
            raise ValueError(f"{where} is malformed or cut short: {error}") from error
        for name, t in tensors.items():
            if not bool(torch.isfinite(t).all()):
                raise header.error(f"tensor {name} holds NaN or infinity")
        return header, tensors

    def _check_format(self, header: Header) -> None:
        found, version = header.metadata.get("format"), header.metadata.get("format_version")
        if found != self.format:
            raise header.error(f"format is {found!r}, expected {self.format!r}")
        if version != str(self.version):
            raise header.error(
                f"format_version is {version!r}, this kvp-ext reads {self.version}; a newer one "
                "needs a newer kvp-ext"
            )

    def _check_tensors(self, header: Header, file: Any, expected: Shapes) -> None:
        names = set(file.keys())
        missing, unknown = sorted(set(expected) - names), sorted(names - set(expected))
        if missing or unknown:
            raise header.error(f"missing tensors {missing}, unexpected tensors {unknown}")
        for name, shape in expected.items():
            found = file.get_slice(name)
            if found.get_shape() != list(shape) or found.get_dtype() not in self.dtypes:
                raise header.error(
                    f"tensor {name} is {found.get_dtype()} {found.get_shape()}, expected "
                    f"{' or '.join(self.dtypes)} {list(shape)} by the file's geometry"
                )
