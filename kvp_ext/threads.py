"""Threads of the CPU backend."""

from __future__ import annotations

import torch

_num_threads: int | None = None


def set_num_threads(threads: int | None) -> None:
    """Sets the threads that CPU operations use; `None` follows `torch.get_num_threads()` again.

    Raises:
        TypeError, ValueError: not an int of at least 1.
    """
    global _num_threads
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int):
            raise TypeError(f"threads is {threads!r}, expected an int or None")
        if threads < 1:
            raise ValueError(f"threads is {threads}, expected at least 1")
    _num_threads = threads


def get_num_threads() -> int:
    """Threads that CPU operations use."""
    return torch.get_num_threads() if _num_threads is None else _num_threads
