"""Learned eviction of KV-cache entries: score, select and compact all heads in one call.

kvp_ext.use("smollm2-135m-instruct")
kvp_ext.evict_(k_cache, v_cache, pos, budget)
"""

import importlib.metadata as _metadata
from pathlib import Path as _Path

from python_ref.budgets import budget_from_ratio

try:
    from . import _C
except ImportError as _error:
    raise ImportError(
        f"kvp_ext was found in {_Path(__file__).parent}, without its compiled part.\n"
        "If this is a source tree, leave it (it hides an installed kvp-ext),\n"
        "or build it there: pip install -e ."
    ) from _error

from ._backends import backends
from .active import active_policy, load_policy, policies, use
from .eviction import compact_, evict_, score, select
from .policy import Policy
from .results import Evicted, Selection
from .threads import get_num_threads, set_num_threads

try:
    __version__ = _metadata.version("kvp-ext")
except _metadata.PackageNotFoundError:  # imported from a source tree that was never installed
    __version__ = "0+unknown"


def cmake_prefix() -> str:
    """The folder to put on CMAKE_PREFIX_PATH, so that `find_package(kvp)` finds libkvp."""
    return str(_Path(_C.__file__).parent)


__all__ = [
    "Evicted",
    "Policy",
    "Selection",
    "active_policy",
    "backends",
    "budget_from_ratio",
    "cmake_prefix",
    "compact_",
    "evict_",
    "get_num_threads",
    "load_policy",
    "policies",
    "score",
    "select",
    "set_num_threads",
    "use",
]
