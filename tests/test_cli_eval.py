"""`kvp-ext eval`, on a tiny random model that reads bytes."""

import json

import pytest
import transformers
from command_line import run_command, save_tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import kvp_ext
from kvp_ext.cli.eval import evaluate
from python_ref.evaluation.records import read_records

pytestmark = pytest.mark.usefixtures("quiet_command")
TASK = "ruler/niah_single_1"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder as `save_pretrained` makes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_only)
    return save_tiny_llama(folder, tokenizer)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "mine.safetensors"
    kvp_ext.Policy.random(layers=2, kv_heads=2, head_dim=8).save(path)
    return path


def run(*arguments):
    return run_command(evaluate, *arguments)


def command(model, policy, out, *more):
    options = ["--model", model, "--task", TASK, "--count", 2, "--lengths", "700:900"]
    options += ["--method", f"kvp:{policy}", "--method", "knorm", "--out", out]
    return run(*options, *more)


def test_it_writes_records_tables_and_curves(model, policy, tmp_path):
    text = tmp_path / "words.jsonl"
    lines = [{"text": f"Sentence {i} goes on. " * 200} for i in range(20)]
    text.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "results"
    more = ["--task", text, "--budget", "25%", "--budget", "64", "--protocol", "both"]
    done = command(model, policy, out, *more)
    assert done.exit_code == 0, done.output
    records = read_records(out / "records.jsonl")
    # Two documents of each task; a text has no question that could be inside.
    assert len(records) == (2 + 2 + 2) * (1 + 2 * 2)
    assert {r.task for r in records} == {TASK, str(text)}
    assert {(r.budget, type(r.budget)) for r in records} == {(0.25, float), (64, int), (1.0, float)}
    assert all(r.kept == 64 for r in records if r.budget == 64)
    assert records[0].model.startswith("tiny ")
    assert records[0].model.endswith(" float32")
    page = (out / "tables.md").read_text()
    for title in (
        f"## {TASK}: question after eviction: references found in the answer",
        f"## {TASK}: question in the prefill: references found in the answer",
        f"## {text}: question after eviction: perplexity",
    ):
        assert title in page
    assert ": dev split, 2 documents a task, 700:900 tokens, seed 0" in page
    parsed = json.loads((out / "tables.json").read_text())
    primary = [table for table in parsed if table["primary"]]
    assert len(primary) == 3
    assert primary[0]["reference"] == f"kvp:{policy}"
    knorm = [cell for cell in primary[0]["cells"] if cell["method"] == "knorm"]
    assert [cell["difference_interval"] is not None for cell in knorm] == [True, True]
    assert len(list(out.glob("curves-*.png"))) == 3
    assert "question after eviction" in done.output
    assert "knorm" in done.output


def test_it_goes_on_where_it_stopped(model, policy, tmp_path):
    out = tmp_path / "results"
    half = ["--budget", "0.5", "--count", 1]
    done = command(model, policy, out, *half)
    assert done.exit_code == 0, done.output
    assert "one look" not in done.output
    first = (out / "records.jsonl").read_text()
    assert len(first.splitlines()) == 1 + 2
    assert command(model, policy, out, *half, "--budget", "0.25").exit_code == 0
    both = (out / "records.jsonl").read_text()
    assert both.startswith(first)
    assert len(both.splitlines()) == 1 + 2 * 2
    # Tables are of what was asked for, not of all that the file holds.
    assert command(model, policy, out, "--budget", "0.25", "--count", 1).exit_code == 0
    assert (out / "records.jsonl").read_text() == both
    parsed = json.loads((out / "tables.json").read_text())
    assert {cell["budget"] for cell in parsed[0]["cells"]} == {0.25}


def test_every_way_to_share(model, policy, tmp_path):
    shared = tmp_path / "shared.safetensors"
    one = kvp_ext.Policy.random(layers=2, kv_heads=2, head_dim=8)
    one.provenance["shares"] = {"0.25": [[1.5, 0.5], [0.8, 1.2]]}
    one.save(shared)
    options = ["--budget", "0.25", "--count", 1]
    for how in ("uniform", "pyramid", "adakv", "model", f"share:{shared}"):
        options += ["--allocators", how]
    out = tmp_path / "results"
    done = command(model, policy, out, *options)
    assert done.exit_code == 0, done.output
    records = read_records(out / "records.jsonl")
    assert len(records) == 1 + 2 * 5
    kept = {r.allocator: r.kept for r in records[1:]}
    assert len(kept) == 5
    assert len(set(kept.values())) == 1
    text = " ".join(done.output.split())
    assert "model compares scores across a model; those of kvp:" in text
    page = (out / "tables.md").read_text()
    assert "| knorm + pyramid |" in page
    assert f"| kvp:{policy} + share:{shared} |" in page
    before = (out / "records.jsonl").read_text()
    assert command(model, policy, out, *options).exit_code == 0
    assert (out / "records.jsonl").read_text() == before


def test_shares_for_another_model_are_told(model, tmp_path):
    path = tmp_path / "shared.safetensors"
    one = kvp_ext.Policy.random(layers=2, kv_heads=2, head_dim=8)
    one.provenance["shares"] = {"0.25": [[1.0, 1.0]] * 3}
    one.save(path)
    done = command(model, path, tmp_path / "results", "--allocator", f"share:{path}")
    assert isinstance(done.exception, ValueError)
    assert "are for 3 layers x 2 KV heads, expected 2 x 2 as in tiny" in str(done.exception)
    assert not (tmp_path / "results").exists()


def test_records_may_be_elsewhere_and_the_test_split_is_for_one_look(model, policy, tmp_path):
    out, elsewhere = tmp_path / "results", tmp_path / "elsewhere.jsonl"
    options = ["--budget", "0.5", "--count", 1, "--split", "test", "--records", elsewhere]
    done = command(model, policy, out, *options)
    assert done.exit_code == 0, done.output
    assert "one look" in done.output
    assert len(read_records(elsewhere)) == 3
    assert not (out / "records.jsonl").exists()
    assert ": test split, 1 documents a task" in (out / "tables.md").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "snapvk"], "method: got 'snapvk', expected one of kvp"),
        (["--method", "snapkv:pool=2"], "pool: got 2, expected 'none' or an odd number"),
        (["--method", "kvp:none.safetensors"], "none.safetensors"),
        (["--allocator", "fair"], "allocator: got 'fair', expected one of adakv, model, pyramid"),
        (["--budget", "2.5"], "budget: got '2.5', expected a fraction"),
        (["--protocol", "before"], "--protocol: got 'before', expected after, inside or both"),
        (["--lengths", "900:700"], "--lengths: got '900:700', expected SHORTEST:LONGEST"),
        (["--lengths", "long"], "--lengths: got 'long', expected SHORTEST:LONGEST"),
        (["--split", "all"], "--split: got 'all', expected train, dev or test"),
        (["--reference", "tova"], "--reference: got 'tova', expected one of the methods"),
        (["--dtype", "int8"], "--dtype: got 'int8', expected one of auto, float32"),
        (["--task", TASK], f"the source {TASK} is given twice"),
        (["--task", "no/such"], "source 'no/such': not a file"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(model, policy, tmp_path, more, message):
    out = tmp_path / "results"
    done = command(model, policy, out, *more)
    assert isinstance(done.exception, ValueError | FileNotFoundError)
    assert message in str(done.exception)
    assert not out.exists()


def test_a_policy_for_another_model_is_told(model, tmp_path):
    path = tmp_path / "other.safetensors"
    kvp_ext.Policy.random(layers=3, kv_heads=2, head_dim=8).save(path)
    done = command(model, path, tmp_path / "results", "--budget", "0.5")
    assert isinstance(done.exception, ValueError)
    assert "is for layers 3, expected 2 as in tiny" in str(done.exception)
    assert not (tmp_path / "results").exists()


def test_a_missing_model_is_told(tmp_path, policy):
    done = command(tmp_path / "nothing", policy, tmp_path / "results")
    assert isinstance(done.exception, FileNotFoundError | ValueError)
    assert "nothing" in str(done.exception)
