"""Which scores may compete: the one place that says so.

An allocator that compares scores of different rows gives entries to whichever row has the larger
numbers. That is an allocation only if equal numbers mean equal worth.
"""

from __future__ import annotations

SPANS = ("row", "layer", "model")

# The widest span in which a method's scores are on one scale. Attention weights are: each is a
# share of what a query looks at; LaProx divides a layer's by their sum for this purpose; times the
# size of a value they are within a layer. So are noise and positions, though they say nothing of
# worth. A cosine to the head's mean, a key's norm, CapKV's weights, which are relative to the
# head's largest, and LagKV's normalised deviations are scales of the head.
COMPARABLE = {
    "capkv": "row",
    "expected_attention": "layer",
    "h2o": "model",
    "keydiff": "row",
    "knorm": "row",
    "lagkv": "row",
    "laprox": "model",
    "oracle": "model",
    "random": "model",
    "snapkv": "model",
    "streaming_llm": "model",
    "tova": "model",
}


def comparable_span(method: str, *, calibrated: bool = False) -> str:
    """The widest of `SPANS` in which scores may be compared.

    Args:
        method: a method's name, or "kvp": a policy ranks the entries of a row, unless it was
            `calibrated` (`python_ref.training.calibration`). "row" for names not known here.
    """
    if method == "kvp":
        return "model" if calibrated else "row"
    return COMPARABLE.get(method, "row")
