"""The whole model's best entries, wherever they are."""

from __future__ import annotations

from torch import Tensor

from .allocator import Request, allocator, counts_of_best


@allocator("model", compares="model")
def model(request: Request) -> Tensor:
    """All rows of a sequence compete for what their pins leave.

    The budgets are the lengths that mode "model" of ``kvp_ext.evict_`` leaves (see
    ``selection.keep_model``), unless the average is below the pins: then that mode counts the rows
    that hold something, and this one counts all.
    """
    rest = request.total - int(request.low.sum())
    return request.low + counts_of_best(request.scores, request.valid & ~request.pinned, rest)
