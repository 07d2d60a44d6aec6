"""Which scores may compete.

An allocator that compares scores of different rows gives entries to whichever row has the larger
numbers. That is an allocation only if equal numbers mean equal worth.
"""

from __future__ import annotations

from ..methods import methods

SPANS = ("row", "layer", "model")


def comparable_span(method: str, *, calibrated: bool = False) -> str:
    """The widest of `SPANS` in which scores may be compared.

    Args:
        method: a method's name, which says so itself (`Method.compares`); or "kvp": a policy ranks
            the entries of a row, unless it was `calibrated` (`python_ref.training.calibration`);
            or "gate". "row" for other names.
    """
    if method == "kvp":
        return "model" if calibrated else "row"
    if method == "gate":
        return "model"
    return methods()[method].compares if method in methods() else "row"
