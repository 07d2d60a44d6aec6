"""The page of what is kept: its data, and what a browser makes of it."""

import base64
import hashlib
import html.parser
import json
import re

import numpy as np
import pytest
import torch
from browser import chromium
from helpers import assert_same

import kvp_ext
from python_ref.selection import ranking
from python_ref.show import ShowData, build_page
from python_ref.show.page import eviction_ranks
from python_ref.show.tokens import token_texts
from python_ref.utility import cost, optimal_cost

L, H, N = 3, 2, 60
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "\u2028",
    "\u202eright to left",
    "\u200f",
    "a\x00b",
    "\ud800",
    "\n\n",
    "\t",
    "\r",
    "<0x0A>",
    "$data ${css} `",
    "שלום",
    "😀",
    "\\u0041\"'",
    "",
]


def scores_of(*shape: int, seed: int) -> torch.Tensor:
    """Scores with ties, both zeros, infinities and NaN among them."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, generator=g)
    special = torch.tensor([0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan])
    where = torch.rand(*shape, generator=g) < 0.3
    return torch.where(where, special[torch.randint(6, shape, generator=g)], scores)


def evicted(scores: torch.Tensor, budget: int, sinks: int, recent: int) -> torch.Tensor:
    """Which entries `evict_` removes, bool [L, H, n]."""
    layers, heads, n = scores.shape
    k, v = torch.zeros(layers, 1, heads, n, 1), torch.zeros(layers, 1, heads, n, 1)
    done = kvp_ext.evict_(
        k,
        v,
        torch.arange(n),
        budget,
        scores=scores.unsqueeze(1).clone(),
        sinks=sinks,
        recent=recent,
        return_indices=True,
    )
    gone = torch.ones(layers, heads, n, dtype=torch.bool)
    kept = done.kept[:, 0].long()
    return gone.scatter_(2, kept.clamp(min=0), gone.new_zeros(kept.shape))


def show_data(**changes) -> ShowData:
    g = torch.Generator().manual_seed(0)
    utility = torch.rand(L, H, N, generator=g) ** 8
    utility[:, :, 7] = utility[:, :, 8]
    tokens = [f" w{i}" for i in range(N)]
    tokens[20], tokens[21] = "\n", "Line"
    fields = {
        "tokens": tokens,
        "utility": utility,
        "methods": {"noise": scores_of(L, H, N, seed=1), "other": scores_of(L, H, N, seed=2)},
        "marked": ((10, 13), (30, 31)),
        "branches": (("What is it?", "That."), ("", "and so on")),
        "title": "A test",
        "model": "tiny",
    }
    return ShowData(**(fields | changes))


def embedded(page: str) -> dict:
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def array(text: str, kind: str) -> torch.Tensor:
    flat = np.frombuffer(base64.b64decode(text), dtype=kind)
    return torch.from_numpy(flat.astype(kind.replace("u2", "i4"))).reshape(-1, L, H, N)[0]


# ---- the data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("sinks", "recent"), [(4, 16), (0, 0), (3, 0), (0, 5), (20, 20), (99, 9)])
def test_rank_below_budget_is_what_evict_keeps(sinks, recent):
    n = 24
    scores = scores_of(2, 2, n, seed=3)
    rank = eviction_ranks(scores, sinks, recent)
    assert_same(rank.sort(dim=-1).values, torch.arange(n).expand(2, 2, n))
    for budget in range(1, n + 1):
        assert_same(rank >= budget, evicted(scores, budget, sinks, recent))


def test_ranks_scores_and_utility_are_embedded():
    data = show_data()
    contents = embedded(build_page(data))
    assert [m["name"] for m in contents["methods"]] == ["future utility", "noise", "other"]
    assert_same(array(contents["utility"], "<f4"), data.utility)
    for method, scores in zip(
        contents["methods"], [data.utility, *data.methods.values()], strict=True
    ):
        rank = array(method["ranks"], "<u2")
        assert_same(rank.long(), eviction_ranks(scores, 4, 16))
        if method["scores"] is not None:
            bits = array(method["scores"], "<u2") << 16
            assert_same(bits.view(torch.float32), scores.bfloat16().float())
    assert contents["methods"][0]["scores"] is None
    assert contents["marked"] == [[10, 13], [30, 31]]
    assert contents["branches"] == [["What is it?", "That."], ["", "and so on"]]


def test_the_head_shown_first_attends_most_to_what_is_marked():
    utility = torch.ones(L, H, N)
    utility[2, 0, 10:13] = 5.0
    utility[1, 1] = 100.0  # more attention in all, but no larger share of it
    assert embedded(build_page(show_data(utility=utility)))["start"] == 4
    assert embedded(build_page(show_data(utility=utility, marked=())))["start"] == 2


class Elements(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)


def test_hostile_tokens_stay_text():
    tokens = (HOSTILE * N)[:N]
    page = build_page(
        show_data(tokens=tokens, title="</title><b>\x00\u202e", branches=[tuple(HOSTILE[:2])])
    )
    assert embedded(page)["tokens"] == tokens
    assert embedded(page)["title"] == "</title><b>\x00\u202e"
    plain = Elements()
    plain.feed(build_page(show_data()))
    parsed = Elements()
    parsed.feed(page)
    assert parsed.names == plain.names
    assert not re.search("[\x00-\x09\x0b-\x1f\u2028\u202e\ud800]", page)
    page.encode()  # no half of a surrogate pair


def test_the_page_may_run_and_load_nothing_else():
    page = build_page(show_data())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    addresses = re.findall(r"https?://[^\"']*", page)
    assert addresses == ["http://www.w3.org/2000/svg"]  # a name, not a place


def test_size_of_a_page():
    g = torch.Generator().manual_seed(0)
    shape = (30, 3, 700)
    page = build_page(
        ShowData(
            tokens=[" token"] * 700,
            utility=torch.rand(shape, generator=g),
            methods={f"method {i}": torch.randn(shape, generator=g) for i in range(6)},
        )
    )
    assert len(page.encode()) < 2.7e6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["a"]}, "tokens: got 1 texts, expected 60"),
        ({"utility": torch.ones(L, N)}, r"utility: got shape \[3, 60\], expected \[L, H, n\]"),
        ({"utility": torch.ones(L, H, 0)}, r"utility: got shape \[3, 2, 0\]"),
        ({"utility": torch.full((L, H, N), torch.nan)}, "utility: .*not finite"),
        ({"utility": -torch.ones(L, H, N)}, "utility: .*negative"),
        ({"methods": {"a": torch.ones(L, H, 5)}}, r"methods\['a'\]: got shape \[3, 2, 5\]"),
        ({"methods": {"future utility": torch.ones(L, H, N)}}, "methods: got 'future utility'"),
        ({"marked": ((50, 61),)}, r"marked: got \[50, 61\), expected a range within 60 tokens"),
        ({"marked": ((5, 5),)}, r"marked: got \[5, 5\)"),
        ({"sinks": -1}, "sinks: got -1, expected at least 0"),
        ({"recent": -1}, "recent: got -1, expected at least 0"),
    ],
)
def test_bad_data_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        show_data(**changes)


def byte_tokenizer():
    """A tokenizer with a token for every byte, as byte-level BPE has without merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_token_texts_of_split_characters():
    tokenizer = byte_tokenizer()
    text = "a é\n😀 b"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert token_texts(tokenizer, ids) == ["a", " ", "", "é", "\n", "", "", "", "😀", " ", "b"]
    # A character that never ends, and one that is broken off by another.
    assert token_texts(tokenizer, ids[5:7])[-1] == "\ufffd"
    broken = token_texts(tokenizer, [*ids[5:7], ids[0]])
    assert broken[-1].endswith("a")
    assert "".join(broken).count("a") == 1


def test_token_texts_keep_the_space_that_decoding_one_token_drops():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = {"▁the": 0, "▁end": 1, "ing": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="ing"))
    tokenizer.decoder = decoders.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert fast.decode([1]) == "end"
    assert token_texts(fast, [0, 1, 2, 0]) == ["the", " end", "ing", " the"]


# ---- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(tab, tmp_path):
    """Opens a page at a size, and asserts in the end that nothing went wrong in it."""
    tab.errors.clear()
    tab.requests.clear()

    def open_page(data, width=1400, height=900, scheme="light"):
        path = tmp_path / "page.html"
        path.write_text(build_page(data), encoding="utf-8")
        tab.display(width, height, scheme)
        tab.hover(1, 1)
        tab.open(path)
        return tab

    yield open_page
    assert tab.errors == []
    assert all(url.startswith("file://") for url in tab.requests)
    assert len(tab.requests) == 1


def choose(tab, control, value):
    tab.run(
        f"""(() => {{
            const control = document.getElementById("{control}");
            control.value = "{value}";
            control.dispatchEvent(new Event("change", {{bubbles: true}}));
            control.dispatchEvent(new Event("input", {{bubbles: true}}));
        }})()"""
    )


def struck(tab, side="left"):
    """The tokens that are struck through, as the browser paints them."""
    return torch.tensor(
        tab.run(
            f"""[...document.querySelectorAll("#{side} .token")].map(
                (token) => getComputedStyle(token).textDecorationLine === "line-through")"""
        )
    )


def table(tab, name):
    return tab.run(
        f"""[...document.getElementById("{name}").rows].map(
            (row) => [...row.cells].map((cell) => cell.textContent))"""
    )


@pytest.mark.browser
def test_struck_through_is_what_evict_removes(page):
    data = show_data()
    tab = page(data)
    all_scores = [data.utility, *data.methods.values()]
    for layer, head, left, right, budget in [
        (0, 0, 1, 0, 15),
        (2, 1, 2, 1, 1),
        (1, 0, 0, 2, 30),
        (1, 1, 1, 1, 22),
        (2, 0, 2, 0, N),
    ]:
        choose(tab, "layer", layer)
        choose(tab, "head", head)
        choose(tab, "left-method", left)
        choose(tab, "right-method", right)
        choose(tab, "budget", budget)
        for side, method in (("left", left), ("right", right)):
            gone = evicted(all_scores[method], budget, 4, 16)[layer, head]
            assert_same(struck(tab, side), gone)
            assert int(gone.sum()) == N - budget


@pytest.mark.browser
def test_mean_over_heads_is_the_majority(page):
    data = show_data()
    tab = page(data)
    scores = data.methods["noise"]
    for layer, head in [("all", "all"), (1, "all"), ("all", 0)]:
        choose(tab, "layer", layer)
        choose(tab, "head", head)
        choose(tab, "budget", 33)
        chosen = (
            slice(None) if layer == "all" else slice(layer, layer + 1),
            slice(None) if head == "all" else slice(head, head + 1),
        )
        gone = evicted(scores, 33, 4, 16)[chosen].flatten(0, 1)
        assert_same(struck(tab), gone.float().mean(dim=0) > 0.5)
    rank = eviction_ranks(scores, 4, 16)[:, 0].double().mean(dim=0)
    tab.run("document.querySelectorAll('#left .token')[25].focus()")
    assert table(tab, "token-rows")[1][1] == f"{rank[25] + 1:.1f}"
    assert table(tab, "token-rows")[1][3] == f"{int((~gone[:, 25]).sum())} of {L}"


@pytest.mark.browser
def test_costs_are_those_of_the_definition(page):
    data = show_data()
    tab = page(data)
    marked = torch.zeros(N, dtype=torch.bool)
    marked[10:13] = marked[30] = True
    for row, budget in [((2, 1), 25), ((slice(None), slice(None)), 40)]:
        for control, value in zip(("layer", "head"), row, strict=True):
            choose(tab, control, "all" if isinstance(value, slice) else value)
        choose(tab, "budget", budget)
        shown = table(tab, "methods")
        ideal = eviction_ranks(data.utility, 4, 16).argsort(dim=-1)
        for cells, (name, scores) in zip(
            shown, [("future utility", data.utility), *data.methods.items()], strict=True
        ):
            gone = evicted(scores, budget, 4, 16)
            lost = (data.utility * gone).sum(-1) / data.utility.sum(-1)
            kept = 1 - gone[..., marked].float().mean(dim=-1)
            order = eviction_ranks(scores, 4, 16).argsort(dim=-1)
            ratio = cost(data.utility, order) / cost(data.utility, ideal)
            assert cells[0] == name
            assert float(cells[1].rstrip("%")) == pytest.approx(
                100 * float(lost[row].mean()), abs=0.051
            )
            assert float(cells[2].rstrip("%")) == pytest.approx(
                100 * float(kept[row].mean()), abs=0.051
            )
            assert float(cells[3]) == pytest.approx(float(ratio[row].mean()), abs=0.0051)
    # Without pins the ideal is the one of the definition.
    everything = torch.ones_like(data.utility, dtype=torch.bool)
    free = ranking(data.utility, everything)
    assert_same(eviction_ranks(data.utility, 0, 0).argsort(dim=-1), free)
    assert_same(cost(data.utility, free), optimal_cost(data.utility))


@pytest.mark.browser
def test_the_chart_draws_every_method_and_the_budget(page):
    data = show_data()
    tab = page(data)
    choose(tab, "layer", 1)
    choose(tab, "head", 0)
    heights = []
    for budget in (20, 35, N):
        choose(tab, "budget", budget)
        points = tab.run(
            """[...document.querySelectorAll("#chart circle")].map(
                (dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value])"""
        )
        lines = tab.run("document.querySelectorAll('#chart polyline').length")
        assert lines == len(points) == 3
        share = (budget - 20) / (N - 20)
        for x, _ in points:
            assert x == pytest.approx(46 + share * (358 - 46), abs=0.1)
        # Drawn from the last method to the ideal.
        heights.append([y for _, y in reversed(points)])
    assert heights[0] == pytest.approx([12] * 3)
    assert heights[2] == pytest.approx([190] * 3)
    lost = [
        float((data.utility * evicted(scores, 35, 4, 16))[1, 0].sum())
        for scores in [data.utility, *data.methods.values()]
    ]
    most = float((data.utility * evicted(data.utility, 20, 4, 16))[1, 0].sum())
    expected = [190 - 178 * share / most for share in lost]
    assert heights[1] == pytest.approx(expected, abs=0.1)


@pytest.mark.browser
def test_hostile_tokens_are_shown_and_do_nothing(page):
    tokens = (HOSTILE * N)[:N]
    tab = page(show_data(tokens=tokens, branches=[tuple(HOSTILE[:2])], title=HOSTILE[0]))
    shown = tab.run('[...document.querySelectorAll("#left .token")].map((t) => t.textContent)')
    expected = {
        "\u2028": "‹U+2028›",
        "\u202eright to left": "‹U+202E›right to left",
        "\u200f": "‹U+200F›",
        "a\x00b": "a␀b",
        "\ud800": "‹U+D800›",
        "\n\n": "↵\n↵\n",
        "\t": "⇥",
        "\r": "␍",
        "": "·",
    }
    assert shown == [expected.get(token, token) for token in tokens]
    assert tab.run("window.hacked") is None
    assert tab.run("document.scripts.length") == 2
    assert tab.run("document.images.length") == 0
    assert tab.run("document.getElementById('title').textContent") == HOSTILE[0]
    assert tab.run("document.title") == HOSTILE[0]
    assert tab.run("document.querySelector('.question').textContent") == HOSTILE[0]


@pytest.mark.browser
def test_everything_is_reached_by_keyboard(page):
    data = show_data()
    tab = page(data, width=1400)
    focus = "document.activeElement.id || document.activeElement.closest('section').id"
    stops = []
    for _ in range(7):
        tab.press("Tab")
        stops.append(tab.run(focus))
        outline = tab.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", stops
    assert stops == ["layer", "head", "left-method", "right-method", "budget", "left", "right"]

    tab.run("document.getElementById('budget').focus()")
    tab.press("Home")
    tab.press(*["ArrowRight"] * 24)
    assert tab.run("document.getElementById('kept').textContent") == "25 of 60 kept (41.7%)"
    valuetext = tab.run("document.getElementById('budget').getAttribute('aria-valuetext')")
    assert valuetext == "25 of 60 kept (41.7%)"
    layer, head = divmod(embedded(build_page(data))["start"], H)
    assert_same(struck(tab), evicted(data.methods["noise"], 25, 4, 16)[layer, head])
    tab.press("ArrowLeft")
    assert_same(struck(tab), evicted(data.methods["noise"], 24, 4, 16)[layer, head])

    tab.run("document.getElementById('left-method').focus()")
    tab.press("ArrowDown")
    assert tab.run("document.getElementById('left-name').textContent") == "other"
    assert_same(struck(tab), evicted(data.methods["other"], 24, 4, 16)[layer, head])
    tab.run("document.getElementById('layer').focus()")
    tab.press("Home")
    tab.press("ArrowDown")
    assert tab.run("document.getElementById('layer').value") == "0"
    assert_same(struck(tab), evicted(data.methods["other"], 24, 4, 16)[0, head])


@pytest.mark.browser
def test_arrow_keys_move_through_the_text(page):
    tab = page(show_data(), width=1400)
    where = "Number(document.activeElement.dataset.token)"
    tab.run("document.querySelectorAll('#left .token')[5].focus()")
    tab.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert tab.run(where) == 6
    tab.press("End")
    assert tab.run(where) == N - 1
    tab.press("ArrowRight")
    assert tab.run(where) == N - 1
    tab.press("Home", "ArrowLeft")
    assert tab.run(where) == 0

    def box(i):
        return tab.run(
            f"""(() => {{
                const box = document.querySelectorAll("#left .token")[{i}].getClientRects()[0];
                return [box.left, box.top];
            }})()"""
        )

    tab.run("document.querySelectorAll('#left .token')[3].focus()")
    tab.press("ArrowDown")
    below = tab.run(where)
    (x, top), (x_below, top_below) = box(3), box(below)
    assert top < top_below < top + 40
    assert abs(x - x_below) < 30
    tab.press("ArrowUp")
    assert abs(tab.run(where) - 3) <= 1
    # One token is the text's stop for Tab, and it is the one last looked at.
    stops = tab.run(
        """[...document.querySelectorAll("#left .token")].flatMap(
            (token, i) => token.tabIndex === 0 ? [i] : [])"""
    )
    assert stops == [tab.run(where)]


@pytest.mark.browser
def test_a_token_tells_its_rank_score_and_utility(page):
    data = show_data()
    tab = page(data)
    choose(tab, "layer", 2)
    choose(tab, "head", 0)
    choose(tab, "budget", 30)
    x, y = tab.run(
        """(() => {
            const box = document.querySelectorAll("#right .token")[11].getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        })()"""
    )
    tab.hover(x, y)
    text = tab.run("document.getElementById('token-text').textContent")
    utility = float(data.utility[2, 0, 11])
    assert text.startswith(" w11 position 11, utility ")
    assert float(re.search(r"utility ([\d.e-]+)", text)[1]) == pytest.approx(utility, rel=5e-3)
    assert text.endswith(", asked for")
    for cells, scores in zip(
        table(tab, "token-rows"), [data.utility, *data.methods.values()], strict=True
    ):
        assert int(cells[1]) == int(eviction_ranks(scores, 4, 16)[2, 0, 11]) + 1
        score = scores[2, 0, 11].item()
        if np.isnan(score):
            assert cells[2] == "none"
        else:
            shown = float(cells[2].replace("Infinity", "inf"))
            assert shown == pytest.approx(score, rel=1e-2, abs=1e-9)
        assert cells[3] == ("no" if evicted(scores, 30, 4, 16)[2, 0, 11] else "yes")
    assert tab.run("document.querySelectorAll('#left .token')[11].classList.contains('active')")
    outlined = tab.run(
        """[...document.querySelectorAll("#left .token")].flatMap((token, i) =>
            getComputedStyle(token).borderTopStyle === "solid" ? [i] : [])"""
    )
    assert outlined == [10, 11, 12, 30]
    tab.run("document.querySelectorAll('#left .token')[2].focus()")
    assert "always kept" in tab.run("document.getElementById('token-text').textContent")


@pytest.mark.browser
def test_controls_and_texts_have_names(page):
    tab = page(show_data())
    nodes = tab.send("Accessibility.getFullAXTree")["nodes"]
    names = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    }
    for expected in [
        ("combobox", "Layer"),
        ("combobox", "KV head"),
        ("combobox", "Left"),
        ("combobox", "Right"),
        ("slider", "Budget"),
        ("form", "What is shown"),
        ("group", "noise"),
        ("group", "future utility"),
    ]:
        assert expected in names
    assert any(role == "image" and "Future attention" in name for role, name in names)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits(page, width):
    long = ["supercalifragilistic" * 5, *[f" w{i}" for i in range(N - 1)]]
    methods = {"kvp:/a/rather/long/path/policy.safetensors": torch.rand(L, H, N)}
    tab = page(show_data(tokens=long, methods=methods), width=width)
    assert tab.run("document.documentElement.scrollWidth") <= width
    right = tab.run("document.getElementById('right').getBoundingClientRect().width")
    left = tab.run("document.getElementById('left').getBoundingClientRect().width")
    assert left > 330
    assert right == (0 if width == 400 else left)
    controls = tab.run(
        """["layer", "head", "left-method", "budget", "kept"].map((id) => {
            const box = document.getElementById(id).getBoundingClientRect();
            return [box.left, box.right, box.height];
        })"""
    )
    for start, stop, height in controls:
        assert 0 <= start < stop <= width
        assert height >= 20
    size = tab.run("parseFloat(getComputedStyle(document.querySelector('#left .token')).fontSize)")
    assert size >= 15


def srgb(tab, selector, properties):
    """Colours of an element as the browser paints them, [len(properties), 3] in 0 .. 1."""
    return (
        torch.tensor(
            tab.run(
                f"""(() => {{
                const context = document.createElement("canvas")
                    .getContext("2d", {{willReadFrequently: true}});
                const style = getComputedStyle(document.querySelector("{selector}"));
                return {json.dumps(properties)}.map((property) => {{
                    context.fillStyle = style.getPropertyValue(property);
                    context.fillRect(0, 0, 1, 1);
                    return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
                }});
            }})()"""
            )
        )
        .double()
        .div(255)
    )


def linear(colour):
    return torch.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    """Relative luminance of sRGB [..., 3] (WCAG 2)."""
    return linear(colour) @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)


def contrast(a, b):
    """Contrast ratio (WCAG 2)."""
    bright, dark = (
        torch.maximum(luminance(a), luminance(b)),
        torch.minimum(luminance(a), luminance(b)),
    )
    return (bright + 0.05) / (dark + 0.05)


# What is left of colour without one kind of cone (Vienot, Brettel and Mollon, 1999), linear RGB.
DICHROMATS = {
    "protan": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deutan": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read_and_told_apart(page, scheme):
    tab = page(show_data(), scheme=scheme)
    ground = srgb(tab, "body", ["background-color"])[0]
    assert bool((luminance(ground) > 0.9) if scheme == "light" else (luminance(ground) < 0.05))
    shades = []
    for step in range(21):
        tab.run(
            f"""document.querySelectorAll("#left .token").forEach((token) => {{
                token.style.setProperty("--rank", {step / 20});
                token.classList.toggle("evicted", Number(token.dataset.token) === 1);
            }})"""
        )
        for token in ("0", "1"):
            paint = srgb(tab, f"#left [data-token='{token}']", ["color", "background-color"])
            assert contrast(*paint) >= 4.5, (step, token)
            if token == "0":
                shades.append(paint[1])
    shades = torch.stack(shades)
    # CIE lightness falls or rises in even steps, so ranks are told apart by lightness alone ...
    y = luminance(shades)
    lightness = 116 * y.clamp(min=216 / 24389) ** (1 / 3) - 16
    steps = lightness.diff() * (1 if scheme == "light" else -1)
    assert steps.min() > 1.5
    assert steps.max() < 2 * steps.min()
    # ... also by eyes without red or green cones ...
    for matrix in DICHROMATS.values():
        seen = linear(shades) @ torch.tensor(matrix, dtype=torch.float64).T
        y = seen @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
        assert bool((y.diff() * (1 if scheme == "light" else -1) > 0).all())
    # ... and the best rank stands out from the page most.
    against = torch.stack([contrast(shade, ground) for shade in shades])
    assert bool((against.diff() < 0).all())
    assert against[0] > 7


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_outlines_and_curves_stand_out(page, scheme):
    methods = {f"method {i}": torch.rand(L, H, N) for i in range(8)}
    tab = page(show_data(methods=methods), scheme=scheme)
    ground = srgb(tab, "body", ["background-color"])[0]
    outline = srgb(tab, "#left .marked", ["border-top-color"])[0]
    assert contrast(outline, ground) >= 3
    looks = set()
    for row in range(1, 10):
        line = f"#methods tr:nth-child({row}) line"
        assert contrast(srgb(tab, line, ["stroke"])[0], ground) >= 3
        looks.add(
            tab.run(
                f"""(() => {{
                    const style = getComputedStyle(document.querySelector("{line}"));
                    return style.stroke + style.strokeDasharray;
                }})()"""
            )
        )
    assert len(looks) == 9
    quiet = srgb(tab, "#chart-caption", ["color"])[0]
    assert contrast(quiet, ground) >= 4.5


@pytest.mark.browser
def test_a_page_of_one_token(page):
    utility = torch.zeros(1, 1, 1)
    tab = page(ShowData(tokens=["a"], utility=utility, methods={"m": torch.ones(1, 1, 1)}))
    assert struck(tab).tolist() == [False]
    assert table(tab, "methods")[1] == ["m", "0.0%", "–", "1.00"]
    assert tab.run("document.getElementById('branches').hidden")
