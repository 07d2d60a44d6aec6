"""StreamingLLM: Efficient Streaming Language Models with Attention Sinks (arXiv 2309.17453)."""

from __future__ import annotations

from torch import Tensor

from .method import method, pin_first


@method("streaming_llm", sinks=4, compares="model")
def streaming_llm(*, pos: Tensor, sinks: int = 4) -> Tensor:
    """Recency; the first ``sinks`` entries pinned. Exact for positions below 2^24."""
    return pin_first(pos.float(), sinks)
