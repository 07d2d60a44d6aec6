"""`kvp-ext train`, on traces of a made-up model."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import typer
from typer.testing import CliRunner

import kvp_ext
from kvp_ext.cli.train import train_policy
from python_ref.model_info import ModelInfo
from python_ref.training import log
from python_ref.training.trace_store import TraceReader, TraceWriter
from python_ref.training.traces import Trace, TraceOptions
from python_ref.training.train import Phase, Recipe, Trainer

app = typer.Typer()
app.command()(train_policy)

MODEL = ModelInfo("made-up", "0123456789abcdef", "float32", 2, 4, 2, 4, 4)
FAST = ["--threads", "1", "--steps", "4", "--items", "2", "--tokens", "16"]


def write(folder, seeds, model=MODEL, kind="t"):
    with TraceWriter(folder, model, TraceOptions()) as writer:
        for seed in seeds:
            g = torch.Generator().manual_seed(seed)
            n = 50 + seed
            k, v = (torch.randn(2, 2, n, model.head_dim_k, generator=g) for _ in range(2))
            utility = k.norm(dim=-1).exp() / n
            utilities = (utility[..., :30].contiguous(), utility)
            marked = torch.arange(n) < 4
            writer.add(f"d{seed}", Trace(kind, k.half(), v.half(), (30, n), utilities, marked))
    return folder


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    return write(folder / "train", range(4)), write(folder / "dev", range(10, 12))


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def same(first, second):
    first, second = first.folded, second.folded
    return all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_a_policy_its_log_and_its_picture(traces, tmp_path):
    out, rows, picture = (tmp_path / name for name in ("p.safetensors", "log.csv", "log.png"))
    done = run(
        *("--traces", traces[0], "--dev", traces[1], "--out", out, "--log", rows),
        *("--plot", picture, "--objective", "regression:6", "--objective", "rloo,rankings=3"),
        *("--agent", "hidden=16", "--lr", "1e-3", "--every", "5", "--seed", "3", *FAST),
    )
    assert done.exit_code == 0, done.output
    policy = kvp_ext.load_policy(out)
    assert (policy.name, policy.layers, policy.kv_heads, policy.hidden) == ("p", 2, 2, 16)
    assert (policy.max_position, policy.sinks, policy.recent) == (52, 4, 16)
    assert [row.phase for row in log.read(rows)] == ["1 regression"] * 6 + ["2 rloo"] * 4
    assert [row.step for row in log.read(rows) if row.dev_cost] == [5, 6, 10]
    assert picture.read_bytes()[:4] == b"\x89PNG"

    phases = (Phase("regression", 6, 2, 16, 1e-3), Phase("rloo", 4, 2, 16, 1e-3))
    phases = (phases[0], replace(phases[1], options={"rankings": 3}))
    recipe = Recipe(phases, agent={"hidden": 16}, seed=3)
    trainer = Trainer(TraceReader(traces[0]), recipe, dev=TraceReader(traces[1]))
    assert same(policy, kvp_ext.Policy.from_agent(trainer.run()))
    told = policy.provenance
    assert told["recipe"] == recipe.as_json() | {"phases": told["recipe"]["phases"]}
    assert told["recipe"]["phases"][1]["options"] == {"rankings": 3}
    assert told["traces"]["model"]["fingerprint"] == MODEL.fingerprint
    assert (told["traces"]["count"], told["traces"]["longest"]) == (4, 53)
    assert told["dev"]["cost"] == pytest.approx(trainer.dev_cost.plain.mean().item(), abs=1e-4)
    assert told["versions"]["torch"] == torch.__version__
    assert f"{told['dev']['cost']:.3f}" in done.output


def test_a_resumed_training_writes_the_same_policy(traces, tmp_path):
    common = ["--traces", traces[0], "--objective", "exact:9", "--every", "4", *FAST]
    state, out = ["--checkpoint", tmp_path / "state"], tmp_path / "a.safetensors"
    assert run(*common, *state, "--out", out, "--resume").exit_code == 0
    first = kvp_ext.load_policy(out)
    again = run(*common, *state, "--out", out)
    assert isinstance(again.exception, ValueError)
    assert "holds one of a training" in str(again.exception)
    resumed = run(*common, *state, "--out", tmp_path / "b.safetensors", "--resume")
    assert "resumed after step 9 of 9" in resumed.output
    assert same(kvp_ext.load_policy(tmp_path / "b.safetensors"), first)
    other = run(*common, *state, "--out", out, "--resume", "--seed", "1")
    assert "recipe.seed was 0, now 1" in str(other.exception)
    assert same(kvp_ext.load_policy(out), first)


def test_kinds_can_be_chosen(traces, tmp_path):
    out, both = tmp_path / "p.safetensors", write(tmp_path / "both", [3], kind="u")
    common = ["--traces", both, "--traces", traces[0], "--out", out, *FAST]
    for arguments in (["--kind", "u*"], ["--without", "t"]):
        assert run(*common, *arguments).exit_code == 0
        told = kvp_ext.load_policy(out).provenance["traces"]
        assert (told["count"], told["kinds"], told["longest"]) == (1, {"u": 1}, 53)
    assert "matches none of the kinds" in str(run(*common, "--kind", "x").exception)


def test_folders_are_joined(traces, tmp_path):
    out = tmp_path / "p.safetensors"
    done = run("--traces", traces[0], "--traces", traces[1], "--out", out, *FAST)
    assert done.exit_code == 0, done.output
    policy = kvp_ext.load_policy(out)
    assert policy.max_position == 60
    assert policy.provenance["traces"]["count"] == 6
    readers = [TraceReader(folder) for folder in traces]
    whole = [trace for reader in readers for trace in reader]
    trained = Trainer(whole, Recipe((Phase(steps=4, items=2, tokens=16),))).run()
    assert same(policy, kvp_ext.Policy.from_agent(trained))


def test_the_papers_architecture(traces, tmp_path):
    out = tmp_path / "paper.safetensors"
    size = ["--agent", "hidden=8", "--agent", "branch_k=8", "--agent", "branch_v=8"]
    done = run("--traces", traces[0], "--out", out, "--architecture", "paper", *size, *FAST)
    assert done.exit_code == 0, done.output
    policy = kvp_ext.load_policy(out)
    assert policy.architecture == "paper"
    assert not policy.folded.shared_positions


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "x.png"], "--plot: got no --log"),
        (["--objective", "guess"], "objective: got 'guess'"),
        (["--agent", "hidden"], "--agent: got 'hidden', expected KEY=VALUE"),
        (["--agent", "depth=3"], "agent: got {'depth': 3}"),
        (["--agent", "inputs=k+age"], "--agent: the inputs include age"),
        (["--parallel", "both"], "parallel: got 'both'"),
        (["--resume"], "resume: got no checkpoint folder"),
        (["--steps", "0"], "steps: got 0"),
        (["--traces", "/no/such/folder"], "/no/such/folder"),
        (["--out", "/no/such/folder/p.safetensors"], "/no/such/folder does not exist"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(traces, tmp_path, arguments, message):
    out, rows = tmp_path / "p.safetensors", tmp_path / "log.csv"
    given = ["--traces", traces[0], "--out", out, *FAST]
    if arguments[0] != "--plot":
        given += ["--log", rows]
    done = run(*given, *arguments)
    assert done.exit_code == 1
    assert isinstance(done.exception, (ValueError, FileNotFoundError))
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_traces_for_development_must_fit(traces, tmp_path):
    other = write(tmp_path / "other", [0], replace(MODEL, head_dim_k=6, head_dim_v=6))
    done = run("--traces", traces[0], "--dev", other, "--out", tmp_path / "p.safetensors", *FAST)
    assert "dev[0]: got [L, H, Dk, Dv] = [2, 2, 6, 6]" in str(done.exception)


def test_a_loss_that_is_not_finite_is_an_error_to_read(tmp_path):
    g = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, 2, 40, 4, generator=g).half() for _ in range(2))
    utility = torch.full((2, 2, 40), torch.nan)
    with TraceWriter(tmp_path / "traces", MODEL, TraceOptions()) as writer:
        writer.add("d", Trace("t", k, v, (40,), (utility,), torch.zeros(40, dtype=torch.bool)))
    done = run("--traces", tmp_path / "traces", "--out", tmp_path / "p.safetensors", *FAST)
    assert isinstance(done.exception, RuntimeError)
    assert "phase 1 (regression), step 1: the loss became nan in 4 heads" in str(done.exception)
    assert not (tmp_path / "p.safetensors").exists()


@pytest.mark.slow
def test_torchrun_trains_in_two_processes(traces, tmp_path):
    common = ["--traces", traces[0], "--objective", "rloo", *FAST]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "-m", "kvp_ext.cli", "train"]
    for mode in ("data", "heads"):
        out = tmp_path / f"{mode}.safetensors"
        command = [*torchrun, *common, "--out", out]
        done = subprocess.run(
            [*map(str, command), "--parallel", mode], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("wrote") == 1
        assert kvp_ext.load_policy(out).provenance["processes"] == 2
    alone = tmp_path / "alone.safetensors"
    assert run(*common, "--out", alone).exit_code == 0
    expected = kvp_ext.load_policy(alone).folded.tensors
    for mode in ("data", "heads"):
        actual = kvp_ext.load_policy(tmp_path / f"{mode}.safetensors").folded.tensors
        for name, tensor in expected.items():
            torch.testing.assert_close(actual[name], tensor, rtol=0, atol=1e-5)
