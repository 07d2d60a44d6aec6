"""`kvp-ext trace`, on a tiny random model and a text file."""

import json
import re

import pytest
import torch
import transformers
from command_line import run_command
from families import config
from tiny_tokenizers import byte_level

from kvp_ext.cli.loading import load_model, parse_lengths
from kvp_ext.cli.trace import size, trace
from python_ref.data.mixture import documents
from python_ref.training import traces
from python_ref.training.trace_store import TraceReader

pytestmark = pytest.mark.usefixtures("quiet_command")
NEEDLES = "ruler/niah_single_1"


def save(kind, folder, **more):
    torch.manual_seed(0)
    made = config(kind, **more)
    made.vocab_size = 512
    transformers.AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    byte_level().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder as `save_pretrained` makes it."""
    return save("LlamaConfig", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "stories.jsonl"
    lines = [json.dumps({"text": f"The dog number {i} jumps. " * 60}) for i in range(20)]
    path.write_text("\n".join(lines))
    return path


def run(*arguments):
    return run_command(trace, *arguments)


def command(model, texts, out, *more, count=4):
    options = ["--model", model, "--source", f"{texts}=2", "--source", NEEDLES]
    options += ["--lengths", "200:300", "--horizon", 40, "--out", out, "--count", count]
    return run(*options, *more)


def test_the_folder_holds_what_the_model_computes(model, texts, tmp_path):
    done = command(model, texts, tmp_path / "t")
    assert done.exit_code == 0, done.output
    reader = TraceReader(tmp_path / "t")
    network, tokenizer = load_model(str(model))
    sources = {str(texts): 2.0, NEEDLES: 1.0}
    wanted = list(documents(tokenizer, sources, 4, lengths=(200, 300)))
    assert len({traces.is_running_text(document) for document in wanted}) == 2
    for made, document in zip(reader, wanted, strict=True):
        expected = traces.trace(network, document, horizon=40)
        assert (made.kind, made.splits) == (document.kind, expected.splits)
        assert torch.equal(made.k, expected.k)
        assert all(map(torch.equal, made.utilities, expected.utilities))
        assert torch.equal(made.marked, expected.marked)
    manifest = reader.manifest
    assert manifest.model.name == str(model)
    assert manifest.options == traces.TraceOptions(horizon=40)
    (corpus,) = manifest.corpora
    assert corpus == {
        "sources": sources,
        "count": 4,
        "lengths": [200, 300],
        "split": "train",
        "seed": 0,
    }
    output = " ".join(done.output.split())
    # 3 layers of 2 KV heads, dimension 8.
    assert "takes 192 bytes for keys and values, 24 for its utility" in output
    assert re.search(r"4 documents: about \d+ kB; 0 bytes of it are in", output)
    assert f"traced 4 documents of {manifest.tokens:,} tokens" in output
    assert re.search(r"[\d,]+ tokens/s", output)
    assert f"4 documents, {manifest.tokens:,} tokens, {size(manifest.bytes)} in 1 shard" in output


def test_the_estimate_is_what_it_takes(model, texts, tmp_path):
    done = command(model, texts, tmp_path / "t", "--store", "queries")
    (number,) = re.findall(r"about (\d+) kB", done.output)
    taken = TraceReader(tmp_path / "t").manifest.bytes
    assert float(number) * 1000 == pytest.approx(taken, rel=0.05)
    assert "372 for its queries" in " ".join(done.output.split())  # 3 (6 (2 8 + 4) + 4)


def test_a_second_run_traces_only_what_is_missing(model, texts, tmp_path):
    command(model, texts, tmp_path / "t", count=2)
    (first,) = (tmp_path / "t").glob("shard-*")
    content = first.read_bytes()
    done = command(model, texts, tmp_path / "t", count=5)
    assert "traced 3 documents" in done.output
    assert "2 were there already" in done.output
    assert first.read_bytes() == content
    assert len(TraceReader(tmp_path / "t")) == 5


def test_it_stops_before_the_disk_limit(model, texts, tmp_path):
    command(model, texts, tmp_path / "all", count=6)
    whole = TraceReader(tmp_path / "all").manifest.bytes
    limit = whole * 0.6
    done = command(model, texts, tmp_path / "some", "--max-disk", limit / 1e9, count=6)
    assert done.exit_code == 0
    assert "stopped: the next document would have exceeded --max-disk" in done.output
    reader = TraceReader(tmp_path / "some")
    assert 0 < len(reader) < 6
    on_disk = sum(path.stat().st_size for path in (tmp_path / "some").iterdir())
    assert on_disk <= limit + 4000  # the headers and the manifest


def test_repair(model, texts, tmp_path):
    command(model, texts, tmp_path / "t")
    before = TraceReader(tmp_path / "t")[0]
    (shard,) = (tmp_path / "t").glob("shard-*")
    shard.write_bytes(shard.read_bytes()[:-10])
    done = command(model, texts, tmp_path / "t")
    assert isinstance(done.exception, ValueError)
    assert "shard-00000.safetensors has" in str(done.exception)
    done = command(model, texts, tmp_path / "t", "--repair")
    assert "traced 4 documents" in done.output
    assert torch.equal(TraceReader(tmp_path / "t")[0].k, before.k)


def test_options_reach_the_traces(model, texts, tmp_path):
    more = ["--splits", 2, "--generate", 3, "--seed", 7, "--split", "dev", "--dtype", "bfloat16"]
    done = command(
        model, texts, tmp_path / "t", *more, "--temperature", 0.5, "--answer-share", 0.25
    )
    assert done.exit_code == 0, done.output
    manifest = TraceReader(tmp_path / "t").manifest
    assert manifest.options == traces.TraceOptions(2, 40, 7, "utilities", 3, 0.5, 0.25)
    assert (manifest.dtype, manifest.model.dtype) == ("bfloat16", "bfloat16")
    assert manifest.corpora[0]["split"] == "dev"
    assert all(len(document.splits) <= 3 for document in manifest.documents)


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        (["--store", "all"], ValueError, "store: got 'all'"),
        (["--lengths", "9:3"], ValueError, "--lengths: got '9:3'"),
        (["--dtype", "int8"], ValueError, "--dtype: got 'int8'"),
        (["--device", "abacus"], ValueError, "--device: got 'abacus'"),
        (["--source", "no/such.jsonl"], FileNotFoundError, "no/such.jsonl"),
        (["--source", "needles=x"], ValueError, "needles=x"),
        (["--split", "all"], ValueError, "split: 'all'"),
        (["--model", "./no/model"], FileNotFoundError, "--model: there is no folder ./no/model"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(model, texts, tmp_path, more, kind, message):
    done = command(model, texts, tmp_path / "t", *more)
    assert isinstance(done.exception, kind), done.exception
    assert re.search(message, str(done.exception))
    assert not (tmp_path / "t").exists()


def test_a_malformed_corpus(model, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{"text": 3}\n')
    done = run("--model", model, "--source", bad, "--out", tmp_path / "t")
    assert isinstance(done.exception, ValueError)
    assert "bad.jsonl, line 2" in str(done.exception)
    assert not (tmp_path / "t").exists()


def test_a_model_that_cannot_be_traced(texts, tmp_path):
    made = transformers.GPT2Config(vocab_size=512, n_embd=24, n_layer=2, n_head=3)
    transformers.GPT2LMHeadModel(made).save_pretrained(tmp_path / "gpt2")
    byte_level().save_pretrained(tmp_path / "gpt2")
    done = command(tmp_path / "gpt2", texts, tmp_path / "t")
    assert isinstance(done.exception, ValueError)
    assert "has no num_key_value_heads" in str(done.exception)
    assert not (tmp_path / "t").exists()


def test_lengths():
    assert parse_lengths("256:2000") == (256, 2000)
    assert parse_lengths("500") == (500, 500)
    for text in ("", "0:5", "5:", "a:b", "5:4", "1:2:3"):
        with pytest.raises(ValueError, match="expected SHORTEST:LONGEST"):
            parse_lengths(text)


def test_sizes_for_people():
    numbers = [0, 999, 1000, 9949, 12_345, 46_000_000, 1_234_000_000_000]
    assert [size(n) for n in numbers] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "9.9 kB",
        "12 kB",
        "46 MB",
        "1,234.0 GB",
    ]


@pytest.mark.model
def test_smollm2(tmp_path):
    """The packaged model: its utilities are those of attention as transformers itself gives it."""
    arguments = ["--source", NEEDLES, "--count", 1, "--lengths", 200, "--answer-share", 0]
    done = run(*arguments, "--out", tmp_path / "t")
    assert done.exit_code == 0, done.output
    (made,) = TraceReader(tmp_path / "t")
    network, tokenizer = load_model("smollm2")
    (document,) = documents(tokenizer, {NEEDLES: 1.0}, 1, lengths=(200, 200))
    n = len(document.context)
    expected = torch.zeros(30, 3, n)
    network.config._attn_implementation = "eager"
    for branch in document.branches:
        with torch.no_grad():
            ids = torch.tensor([document.context + branch.ids])
            attentions = network.model(ids, output_attentions=True).attentions
        for layer, attention in enumerate(attentions):
            group = attention[0].unflatten(0, (3, 3)).amax(dim=1)
            expected[layer] += group[:, n:, :n].mean(dim=1) / len(document.branches)
    assert made.k.shape == (30, 3, n, 64)
    torch.testing.assert_close(made.utility, expected, atol=1e-5, rtol=1e-3)
