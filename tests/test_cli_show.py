"""`kvp-ext show`, on a tiny random model."""

import base64
import json
import re
import webbrowser

import pytest
import tiny_tokenizers
import torch
import transformers
from browser import chromium
from command_line import run_command, save_tiny_llama

import kvp_ext
from kvp_ext.cli.show import METHODS, show
from python_ref.data.mixture import documents
from python_ref.decoder import prefill
from python_ref.methods import methods
from python_ref.show.document import occurrences, text_document
from python_ref.show.page import eviction_ranks
from python_ref.training.traces import branch_utility

pytestmark = pytest.mark.usefixtures("quiet_command")
LAYERS, HEADS = 2, 2
TEXT = "The quick fox said 42. It was the lazy dog that jumps over the fox. " * 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder as `save_pretrained` makes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_tiny_llama(folder, tiny_tokenizers.byte_level())


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "mine.safetensors"
    kvp_ext.Policy.random(layers=LAYERS, kv_heads=HEADS, head_dim=8).save(path)
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(TEXT)
    return path


def run(*arguments):
    return run_command(show, *arguments)


def contents(path):
    data = r'<script type="application/json" id="data">(.*?)</script>'
    return json.loads(re.search(data, path.read_text(encoding="utf-8"))[1])


def ranks(method, n):
    flat = torch.frombuffer(bytearray(base64.b64decode(method["ranks"])), dtype=torch.uint16)
    return flat.to(torch.int64).reshape(LAYERS, HEADS, n)


def test_a_text_with_a_question(model, policy, text, tmp_path):
    out = tmp_path / "pages" / "story.html"
    options = ["--text", text, "--question", "What did it say?", "--answer", "42", "--tokens", 80]
    compared = ["--method", f"kvp:{policy}", "--method", "knorm", "--method", "oracle"]
    pins = ["--sinks", 2, "--recent", 5]
    done = run("--model", model, *options, *compared, *pins, "--out", out)
    assert done.exception is None, done.output
    assert [path.name for path in out.parent.iterdir()] == ["story.html"]
    page = contents(out)
    n = len(page["tokens"])
    assert f"{n} tokens, 4 heads, 2 methods and the ideal" in done.output
    assert n == 80
    assert TEXT.startswith("".join(page["tokens"]))
    assert (page["title"], page["model"]) == ("story.txt", "tiny")
    assert (page["sinks"], page["recent"]) == (2, 5)
    assert page["branches"] == [["\n\nWhat did it say?", " 42"]]
    assert len(page["marked"]) >= 2
    for start, stop in page["marked"]:
        assert "42" in "".join(page["tokens"][start:stop])

    # The numbers are those of the parts, put together here in another way.
    network = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    document = text_document(tokenizer, TEXT, 80, "What did it say?", "42")
    k, v = prefill(network, document.context)
    expected = {
        "future utility": branch_utility(network, k, v, document.branches),
        f"kvp:{policy}": kvp_ext.score(
            k.unsqueeze(1), v.unsqueeze(1), torch.arange(n), policy=kvp_ext.load_policy(policy)
        ).squeeze(1),
        "knorm": methods()["knorm"](k=k),
    }
    assert [method["name"] for method in page["methods"]] == list(expected)
    for method in page["methods"]:
        assert torch.equal(ranks(method, n), eviction_ranks(expected[method["name"]], 2, 5))


def test_a_text_that_goes_on(model, text, tmp_path):
    out = tmp_path / "page.html"
    done = run("--model", model, "--text", text, "--method", "h2o", "--out", out)
    assert done.exception is None, done.output
    page = contents(out)
    (branch,) = page["branches"]
    assert branch[0] == ""
    assert len(page["tokens"]) > 50
    # The longest context leaves a quarter of the text to go on with.
    assert "".join(page["tokens"]) + branch[1] == TEXT
    assert page["marked"] == []


def test_a_task(model, tmp_path):
    pages = []
    for seed in (0, 0, 1):
        out = tmp_path / "page.html"
        options = ["--task", "ruler/niah_single_1", "--tokens", 600, "--seed", seed, "--out", out]
        done = run("--model", model, *options, "--method", "knorm", "--method", "tova")
        assert done.exception is None, done.output
        pages.append(out.read_text(encoding="utf-8"))
    assert pages[0] == pages[1] != pages[2]
    page = contents(tmp_path / "page.html")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    source = {"ruler/niah_single_1": 1.0}
    document = next(documents(tokenizer, source, 1, lengths=(600, 600), split="dev", seed=1))
    assert "".join(page["tokens"]) == tokenizer.decode(document.context)
    assert page["marked"] == [list(marked) for marked in document.marked]
    ((start, stop),) = page["marked"]
    ((_, answer),) = page["branches"]
    assert answer.strip() in "".join(page["tokens"][start:stop])
    assert page["title"] == "ruler/niah_single_1, dev split, seed 1"


def test_open_shows_the_page(model, text, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    out = tmp_path / "page.html"
    arguments = ["--model", model, "--text", text, "--method", "knorm", "--out", out]
    assert run(*arguments).exception is None
    assert opened == []
    assert run(*arguments, "--open").exception is None
    assert opened == [out.as_uri()]


def test_an_answer_that_is_not_there_is_told(model, text, tmp_path):
    options = ["--text", text, "--question", "Who?", "--answer", "nobody", "--tokens", 40]
    done = run("--model", model, *options, "--method", "knorm", "--out", tmp_path / "page.html")
    assert done.exception is None, done.output
    assert "The text's first 40 tokens lack the answer." in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--question", "Who?", "--answer", "Me"], "got no --text"),
        (["--text", "{text}", "--task", "needles"], "--text: got .* beside --task needles"),
        (["--text", "{text}", "--question", "Who?"], "question: got no answer"),
        (["--text", "{text}", "--answer", "Me"], "answer: got no question"),
        (["--text", "no-such.txt"], "--text: got no-such.txt, expected a file"),
        (["--text", "{folder}"], "--text: got .*, expected a file"),
        (["--text", "{binary}"], "--text: got .*binary, expected UTF-8 text"),
        (["--text", "{short}"], "text: 2 tokens, expected at least 32"),
        (["--task", "no-such-task"], "no-such-task"),
        (["--split", "validation"], "split: .*'validation'"),
        (["--method", "magic"], "method: got 'magic', expected one of kvp"),
        (["--method", "kvp"], "policy 'kvp' is for layers 30, expected 2"),
        (["--out", "{folder}"], "--out: got .*, a folder"),
        (["--model", "/no/such/model"], "--model: "),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(model, text, tmp_path, arguments, message):
    places = {name: tmp_path / name for name in ("folder", "binary", "short")}
    places["folder"].mkdir()
    places["binary"].write_bytes(b"\xff\xfe\x00")
    places["short"].write_text("a b")
    before = sorted(tmp_path.rglob("*"))
    given = [argument.format(text=text, **places) for argument in arguments]
    for option, value in (("--model", model), ("--out", tmp_path / "page.html")):
        given = given if option in given else [*given, option, value]
    given = given if "--method" in given else [*given, "--method", "knorm"]
    done = run(*given)
    assert isinstance(done.exception, ValueError | FileNotFoundError)
    assert re.search(message, str(done.exception))
    assert sorted(tmp_path.rglob("*")) == before


def test_occurrences_of_an_answer():
    tokenizer = tiny_tokenizers.CharacterTokenizer()
    tokenizer.decode = lambda ids, **_: "".join(map(chr, ids))
    ids = tokenizer("It is BLUE, as blue as blues.").input_ids
    assert occurrences(tokenizer, ids, " blue ") == ((6, 10), (15, 19), (23, 27))
    assert occurrences(tokenizer, ids, "red") == ()
    assert occurrences(tokenizer, ids, " ") == ()


@pytest.mark.browser
def test_the_page_strikes_through_what_evict_removes(model, policy, text, tmp_path):
    out = tmp_path / "page.html"
    compared = [
        "--method",
        f"kvp:{policy}",
        "--method",
        "snapkv:pool=7",
        "--method",
        "streaming_llm",
    ]
    done = run("--model", model, "--text", text, *compared, "--out", out)
    assert done.exception is None, done.output
    network = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    k, v = prefill(network, text_document(tokenizer, TEXT, 500).context)
    n = k.shape[2]
    budget = round(n / 4)
    evicted = kvp_ext.evict_(
        k.unsqueeze(1).clone(),
        v.unsqueeze(1).clone(),
        torch.arange(n),
        budget,
        policy=kvp_ext.load_policy(policy),
        return_indices=True,
    )
    with chromium(tmp_path / "profile") as tab:
        tab.display(1400)
        tab.open(out)
        for layer in range(LAYERS):
            for head in range(HEADS):
                kept = tab.run(
                    f"""(() => {{
                        for (const [id, value] of [["layer", {layer}], ["head", {head}]]) {{
                            document.getElementById(id).value = value;
                            document.getElementById(id).dispatchEvent(new Event("change"));
                        }}
                        const tokens = [...document.querySelectorAll("#left .token")];
                        return tokens.flatMap((token, i) =>
                            getComputedStyle(token).textDecorationLine === "line-through"
                                ? [] : [i]);
                    }})()"""
                )
                assert kept == evicted.kept[layer, 0, head].tolist()
        assert tab.errors == []


@pytest.mark.model
def test_a_page_of_the_packaged_model(tmp_path):
    out = tmp_path / "page.html"
    done = run("--tokens", 300, "--out", out)
    assert done.exception is None, done.output
    page = contents(out)
    assert [method["name"] for method in page["methods"]] == ["future utility", *METHODS]
    assert (page["layers"], page["heads"]) == (30, 3)
    assert 280 <= len(page["tokens"]) <= 300
    for start, stop in page["marked"]:
        assert stop - start > 3
    assert out.stat().st_size < 1.3e6
