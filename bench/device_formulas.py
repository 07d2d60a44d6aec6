"""What an eviction costs on paper, and the percentiles of what it cost.

Bytes are what has to cross device memory: K and V of every scored entry are read, and K and V of
every survivor that moves are read again and written. Left out, so that what is left is a floor, are
scores, positions and results (3% of K and V at head dim 128) and the policy's weights, which only
short rows notice: of the paper's agent 0.35 MB a head, beside 0.5 MB of K and V at 1,000 tokens.

FLOPs are two per multiply-add of the folded policy's matrices. Norms, SiLU and gains are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


def macs_per_entry(tensors: Mapping[str, Tensor]) -> int:
    """Multiply-adds that score one entry, from a folded policy's tensors `[L, H, …]`.

    Every weight matrix `[out, in]` and the output vector meet each entry once; biases, gains,
    offsets and norms are vectors that are added or scale, and do not count.
    """
    return sum(t[0, 0].numel() for name, t in tensors.items() if _is_product(name))


def _is_product(name: str) -> bool:
    return name.endswith(".weight") and not name.startswith("norm")


@dataclass(frozen=True)
class Cost:
    """Bytes over device memory and floating-point operations of one call."""

    bytes: int
    flops: int

    def floor_ms(self, copy_gb_s: float, matmul_tflop_s: float) -> float:
        """The time below which no version can run, given measured ceilings."""
        return max(self.bytes / copy_gb_s / 1e6, self.flops / matmul_tflop_s / 1e9)


def eviction_cost(*, scored: int, moved: int, channels: int, element_bytes: int, macs: int) -> Cost:
    """Of scoring `scored` entries and moving `moved` survivors, over all rows.

    Args:
        channels: of a key and a value together.
        macs: multiply-adds per entry.
    """
    entry = channels * element_bytes
    return Cost(bytes=(scored + 2 * moved) * entry, flops=2 * macs * scored)


def percentile(samples: Sequence[float], share: float) -> float:
    """The value that `share` of the samples do not exceed, between neighbours by proportion.

    Raises:
        ValueError: no samples, or a share outside 0 … 1.
    """
    if not samples or not 0.0 <= share <= 1.0:
        raise ValueError(
            f"percentile of {len(samples)} samples at {share}, expected some and 0 <= share <= 1"
        )
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median, p5 and p95 of times in ms, and how many there were."""
    return {
        "median": percentile(samples, 0.5),
        "p5": percentile(samples, 0.05),
        "p95": percentile(samples, 0.95),
        "iterations": len(samples),
    }


def copies_past_cache(bytes_each: int, cache_bytes: int) -> int:
    """Input sets to rotate among so that none is still in the cache when its turn comes.

    All of them together are 4 times the cache, and there are at least 2 unless one alone is 32
    times as large: then what its restoring left in the cache is no more than 3% of it.
    """
    if bytes_each >= 32 * cache_bytes:
        return 1
    return max(2, -(-4 * cache_bytes // bytes_each))
