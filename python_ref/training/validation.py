"""How well a policy ranks held-out traces: its cost over the ideal ranking's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from python_ref.training.traces import Trace
from python_ref.utility import relative_cost

TOKENS_AT_ONCE = 512

# Scores [L, B, H, T] of k [L, B, H, T, Dk], v [L, B, H, T, Dv] at positions [T] of a context of
# some length.
Score = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@torch.no_grad()
def ranking_costs(
    score: Score,
    traces: Iterable[Trace],
    *,
    length_aware: bool = False,
    layers: slice = slice(None),
    sinks: int = 4,
    recent: int = 16,
    device: torch.device | str = "cpu",
) -> Tensor:
    """C / C* of every split of every trace, [2, items, L, H]; 1 is perfect.

    First of the ranking by score alone, then of the ranking that an eviction makes, with sinks and
    recent tokens before all others in it and in the ideal one.

    Args:
        score: of the layers in question.
        traces: at least one.
        length_aware: whether the score depends on the length, so that every split needs its own.
        layers: which.
        sinks, recent: what is pinned.
        device: to compute on.
    """
    ratios = []
    for trace in traces:
        scores = trace_scores(score, trace, max(trace.splits), layers, device)
        for n, utility in zip(trace.splits, trace.utilities, strict=True):
            utility = utility[layers].to(device)
            if length_aware:
                scores = trace_scores(score, trace, n, layers, device)
            own = scores[..., :n]
            both = [relative_cost(own, utility), relative_cost(own, utility, sinks, recent)]
            ratios.append(torch.stack(both))
    return torch.stack(ratios, dim=1)


def trace_scores(
    score: Score, trace: Trace, n: int, layers: slice, device: torch.device | str
) -> Tensor:
    """Scores [L, H, n] of the first n tokens of a trace, a block of tokens at a time."""
    blocks = []
    for start in range(0, n, TOKENS_AT_ONCE):
        own = slice(start, min(start + TOKENS_AT_ONCE, n))
        k, v = (x[layers, :, own].to(device).float().unsqueeze(1) for x in (trace.k, trace.v))
        pos = torch.arange(own.start, own.stop, device=device)
        blocks.append(score(k, v, pos, n).squeeze(1))
    return torch.cat(blocks, dim=-1)
