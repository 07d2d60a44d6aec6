"""Finding policies, and the policy used where none is passed."""

from __future__ import annotations

from importlib import resources
from os import PathLike
from pathlib import Path
from types import TracebackType

import torch

from . import policy_file
from .policy import Policy

# What the command line means where no policy is named.
DEFAULT_POLICY = "smollm2-135m-instruct"

_active: Policy | None = None


def policies() -> list[str]:
    """Names of the policies shipped with kvp-ext, for `load_policy`."""
    folder = resources.files("kvp_ext") / "policies"
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir())
    return sorted(n.removesuffix(".safetensors") for n in names if n.endswith(".safetensors"))


def load_policy(name_or_path: str | PathLike[str], *, device: torch.device | str = "cpu") -> Policy:
    """Loads a shipped policy by name (see `policies`) or any policy file by path.

    Raises:
        ValueError: neither a shipped name nor a file, or a malformed file.
        FileNotFoundError: a path that does not exist.
    """
    if not isinstance(name_or_path, str | PathLike):
        raise TypeError(f"name_or_path is {name_or_path!r}, expected a name or a path")
    device = torch.device(device)
    name = str(name_or_path)
    if name in policies():
        shipped = resources.files("kvp_ext") / "policies" / f"{name}.safetensors"
        with resources.as_file(shipped) as path:
            return policy_file.read(path, device=device)
    if isinstance(name_or_path, str) and not Path(name).suffix and "/" not in name:
        known = ", ".join(policies()) or "none"
        raise ValueError(
            f"policy {name!r} is not shipped with kvp-ext (shipped: {known}), "
            "expected one of these or the path of a policy file"
        )
    return policy_file.read(name_or_path, device=device)


class _Use:
    """Restores the previous policy when `use` is used as a context manager."""

    def __init__(self, previous: Policy | None) -> None:
        self._previous = previous

    def __enter__(self) -> Policy | None:
        return _active

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _active
        _active = self._previous


def use(policy: Policy | str | PathLike[str] | None) -> _Use:
    """Makes `policy` the one that calls without a `policy` argument use, in this process.

    Takes a `Policy`, a shipped name or a path; `None` clears it. As a context manager it
    restores the previous policy at the end.
    """
    global _active
    if policy is not None and not isinstance(policy, Policy):
        policy = load_policy(policy)
    previous, _active = _active, policy
    return _Use(previous)


def active_policy() -> Policy:
    """The policy set by `use`.

    Raises:
        RuntimeError: none is set; names the remedy.
    """
    if _active is None:
        shipped = ", ".join(policies()) or "none shipped"
        raise RuntimeError(
            "no policy is given and none is active.\n"
            "Pass policy=kvp_ext.load_policy(name_or_path), or call kvp_ext.use(policy) once.\n"
            f"Shipped policies: {shipped}."
        )
    return _active
