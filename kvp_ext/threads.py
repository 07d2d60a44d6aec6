"""Threads of the CPU backend."""

from __future__ import annotations

import torch

MAX_THREADS = 4096

_num_threads: int | None = None


def set_num_threads(threads: int | None) -> None:
    """Sets the threads that CPU operations use; `None` follows `torch.get_num_threads()` again.

    Raises:
        TypeError, ValueError: not an int from 1 to 4096.
    """
    global _num_threads
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int):
            raise TypeError(f"threads is {threads!r}, expected an int or None")
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads is {threads}, expected 1 to {MAX_THREADS}")
    _num_threads = threads


def get_num_threads() -> int:
    """Threads that CPU operations use."""
    return torch.get_num_threads() if _num_threads is None else _num_threads
