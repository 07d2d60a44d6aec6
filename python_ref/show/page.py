"""One HTML file that shows a context token by token, as in Figure 1 of arXiv 2602.10238.

The file needs nothing else: style, script and numbers are inside, and its content security policy
forbids the browser to load or run anything more. All text reaches the page as JSON and is set as
text by the script, so a token is never read as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any

import torch
from torch import Tensor

from python_ref.selection import pinned_entries, ranking, ranks

IDEAL = "future utility"
LONGEST = 2**16  # ranks are embedded as uint16
_SCRIPTS = ("data.js", "chart.js", "page.js")


@dataclass(frozen=True)
class ShowData:
    """What a page shows, for a context of n tokens.

    Attributes:
        tokens: n texts; an empty one is a part of the character that the next token completes.
        utility: [L, H, n], the attention that each token receives from the future queries. Its
            unit does not matter to the page, which shows shares of each head's sum.
        methods: scores [L, H, n] by name, higher = keep; NaN is below every number.
        marked: token ranges [start, stop) that hold what is asked for.
        branches: (question, answer) texts of what follows the context. A question may be empty.
        sinks, recent: leading and trailing tokens that every method keeps, inside the budget.
        title, model: shown above the text.
    """

    tokens: Sequence[str]
    utility: Tensor
    methods: Mapping[str, Tensor]
    marked: Sequence[tuple[int, int]] = ()
    branches: Sequence[tuple[str, str]] = ()
    sinks: int = 4
    recent: int = 16
    title: str = "What is kept"
    model: str = ""

    def __post_init__(self) -> None:
        shape = tuple(self.utility.shape)
        if len(shape) != 3 or 0 in shape or shape[2] > LONGEST:
            raise ValueError(
                f"utility: got shape {list(shape)}, expected [L, H, n] with n from 1 to {LONGEST:,}"
            )
        if not bool((self.utility.isfinite() & (self.utility >= 0)).all()):
            raise ValueError("utility: got a value that is negative or not finite, expected >= 0")
        if len(self.tokens) != shape[2]:
            raise ValueError(
                f"tokens: got {len(self.tokens)} texts, expected {shape[2]} as in utility"
            )
        for name, scores in self.methods.items():
            if name == IDEAL:
                raise ValueError(f"methods: got {name!r}, a name that the page gives to utility")
            if tuple(scores.shape) != shape:
                raise ValueError(
                    f"methods[{name!r}]: got shape {list(scores.shape)}, expected {list(shape)} "
                    "as utility"
                )
        for start, stop in self.marked:
            if not 0 <= start < stop <= shape[2]:
                raise ValueError(
                    f"marked: got [{start}, {stop}), expected a range within {shape[2]} tokens"
                )
        for name, count in (("sinks", self.sinks), ("recent", self.recent)):
            if count < 0:
                raise ValueError(f"{name}: got {count}, expected at least 0")


def eviction_ranks(scores: Tensor, sinks: int, recent: int) -> Tensor:
    """Rank of each entry such that `evict_` with budget b keeps exactly those of rank < b.

    Entries that are kept whatever their score come first, in the order in which a growing budget
    takes them: the sinks from the first on, then the recent window from the last back. The others
    follow in the order of `selection.ranking`.

    Args:
        scores: [..., n], higher = keep.

    Returns:
        int64 [..., n], 0 = best.
    """
    n = scores.shape[-1]
    valid = torch.ones_like(scores, dtype=torch.bool)
    pinned = pinned_entries(valid, torch.full(scores.shape[:-1], n), sinks, recent)
    slot = torch.arange(n)
    turn = torch.where(slot < sinks, slot, sinks + n - 1 - slot)
    return ranks(ranking(torch.where(pinned, -turn.double(), scores.double()), valid, pinned))


def build_page(data: ShowData) -> str:
    """The page as HTML. Encode it as UTF-8."""
    css = _file("page.css")
    script = '"use strict";\n' + "\n".join(_file(name) for name in _SCRIPTS)
    return Template(_file("page.html")).substitute(
        title=html.escape("".join(c if c.isprintable() else " " for c in data.title)),
        policy=f"default-src 'none'; img-src data:; style-src {_source(css)}; "
        f"script-src {_source(script)}; base-uri 'none'; form-action 'none'",
        css=css,
        script=script,
        data=_json(_contents(data)),
    )


def _contents(data: ShowData) -> dict[str, Any]:
    """What the script reads. Numbers are little-endian arrays in base64, rows (layer, head)."""
    layers, heads, _ = data.utility.shape
    methods = [{"name": IDEAL, "ranks": _ranks(data.utility, data), "scores": None}]
    for name, scores in data.methods.items():
        # Scores are only displayed, with three digits: bfloat16 has the range and half the size.
        shown = scores.to(torch.bfloat16).contiguous().view(torch.int16)
        methods.append(
            {"name": name, "ranks": _ranks(scores, data), "scores": _base64(shown, "<u2")}
        )
    return {
        "title": data.title,
        "model": data.model,
        "tokens": list(data.tokens),
        "marked": [list(marked) for marked in data.marked],
        "branches": [list(branch) for branch in data.branches],
        "layers": layers,
        "heads": heads,
        "sinks": data.sinks,
        "recent": data.recent,
        "start": _start(data),
        "utility": _base64(data.utility.float(), "<f4"),
        "methods": methods,
    }


def _start(data: ShowData) -> int:
    """The row shown first: the head whose future attention goes most to the marked tokens."""
    layers, heads, n = data.utility.shape
    marked = torch.zeros(n, dtype=torch.bool)
    for start, stop in data.marked:
        marked[start:stop] = True
    if not bool(marked.any()):
        return layers // 2 * heads
    share = data.utility[..., marked].sum(-1) / data.utility.sum(-1).clamp(min=1e-30)
    return int(share.argmax())


def _ranks(scores: Tensor, data: ShowData) -> str:
    return _base64(eviction_ranks(scores.cpu(), data.sinks, data.recent), "<u2")


def _base64(x: Tensor, dtype: str) -> str:
    """The elements of x as an array of a little-endian NumPy dtype."""
    array = x.detach().cpu().contiguous().numpy().astype(dtype)
    return base64.b64encode(array.tobytes()).decode()


def _json(contents: dict[str, Any]) -> str:
    """ASCII JSON that is safe inside a script element, whatever the texts are."""
    text = json.dumps(contents, ensure_ascii=True, separators=(",", ":"))
    for c in "<>&":
        text = text.replace(c, f"\\u{ord(c):04x}")
    return text


def _source(text: str) -> str:
    """A content security policy source: this text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (resources.files("python_ref.show") / name).read_text(encoding="utf-8")
