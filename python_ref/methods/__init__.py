"""Eviction methods to compare with: each scores cached entries, higher = keep.

``methods()`` maps names to ``Method`` objects; all are called alike (see ``Method.__call__``). A
new method is one file here, with a function under ``@method`` that scores one sequence of one
layer, and its name in the import below.

Whether a method sees queries decides what a comparison means: those that do see the question when
it is in the prefill. ``Method.sees_queries`` tells.
"""

from __future__ import annotations

from . import (
    capkv,
    expected_attention,
    h2o,
    keydiff,
    knorm,
    lagkv,
    laprox,
    oracle,
    random,
    snapkv,
    streaming_llm,
    tova,
)
from .method import Method, methods

__all__ = [
    "Method",
    "capkv",
    "expected_attention",
    "h2o",
    "keydiff",
    "knorm",
    "lagkv",
    "laprox",
    "methods",
    "oracle",
    "random",
    "snapkv",
    "streaming_llm",
    "tova",
]
