"""Allocators: how the rows of a sequence share what it may keep.

``allocate`` gives budgets [L, B, H] that ``kvp_ext.evict_`` takes with any scores; the caches that
it leaves are ragged: physically smaller, with rows of different length. A new allocator is one file
here, with a function under ``@allocator``, and its name in the import below.
``learned_shares`` makes one for a single model, from a table.

Some let scores of different rows compete. That means something only where a method's scores can be
compared across heads or layers: see ``Allocator.compares`` and ``comparability``.
"""

from __future__ import annotations

from . import adakv, model, pyramid, uniform
from .allocator import Allocator, Request, allocate, allocators
from .comparability import SPANS, comparable_span
from .share import learned_shares

__all__ = [
    "SPANS",
    "Allocator",
    "Request",
    "adakv",
    "allocate",
    "allocators",
    "comparable_span",
    "learned_shares",
    "model",
    "pyramid",
    "uniform",
]
