"""`kvp-ext calibrate`, on traces of a made-up model."""

import pytest
import torch
from command_line import run_command
from typer.testing import CliRunner

import kvp_ext
from kvp_ext.cli import app
from kvp_ext.cli.calibrate import calibrate
from python_ref.evaluation.allocation import allocation
from python_ref.model_info import ModelInfo
from python_ref.training.trace_store import TraceWriter
from python_ref.training.traces import Trace, TraceOptions

pytestmark = pytest.mark.usefixtures("quiet_command")
MODEL = ModelInfo("made-up", "0123456789abcdef", "float32", 2, 4, 2, 4, 4)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    with TraceWriter(folder, MODEL, TraceOptions()) as writer:
        for seed in range(3):
            g = torch.Generator().manual_seed(seed)
            n = 50 + seed
            k, v = (torch.randn(2, 2, n, 4, generator=g) for _ in range(2))
            utility = k.norm(dim=-1).exp() / n
            writer.add(
                f"d{seed}",
                Trace("t", k.half(), v.half(), (n,), (utility,), torch.arange(n) < 4),
            )
    return folder


def policy_file(path, **geometry):
    sizes = {"layers": 2, "kv_heads": 2, "head_dim": 4} | geometry
    policy = kvp_ext.Policy.random(**sizes)
    policy = kvp_ext.Policy(
        policy.folded, sinks=2, recent=5, name="mine", provenance={"seed": 7, "steps": 100}
    )
    policy.save(path)
    return path


def test_a_calibrated_policy_says_what_it_is(traces, tmp_path):
    before = kvp_ext.load_policy(policy_file(tmp_path / "mine.safetensors"))
    out = tmp_path / "scaled.safetensors"
    done = run_command(calibrate, tmp_path / "mine.safetensors", "--traces", traces, "--out", out)
    assert done.exit_code == 0, done.output
    after = kvp_ext.load_policy(out)
    assert (after.name, after.sinks, after.recent) == ("scaled", 2, 5)
    assert (after.provenance["seed"], after.provenance["steps"]) == (7, 100)
    told = after.provenance["calibration"]
    assert told["of"] == "mine"
    assert told["traces"]["count"] == 3
    assert told["after"]["rank_within"] == pytest.approx(told["before"]["rank_within"], abs=1e-3)
    assert told["after"]["r2"] > told["before"]["r2"]
    assert f"{told['after']['rank_all']:.3f}" in done.output
    assert f"{told['flat_heads']} of 4 heads" in " ".join(done.output.split())
    assert list(after.provenance["shares"]) == ["0.5", "0.25", "0.125", "0.0625"]
    how = allocation(f"share:{out}")
    assert how.budgets(torch.randn(2, 2, 100), 25, sinks=2, recent=5).sum() == 100
    shown = CliRunner().invoke(app, ["info", str(out)])
    assert "learned for 0.5, 0.25, 0.125, 0.0625 kept" in " ".join(shown.output.split())
    k, v = torch.randn(2, 2, 1, 2, 40, 4)
    scores = [kvp_ext.score(k, v, torch.arange(40), policy=p) for p in (before, after)]
    assert torch.equal(*(s.argsort(dim=-1) for s in scores))
    assert not torch.allclose(*scores)


@pytest.mark.parametrize(
    ("geometry", "more", "message"),
    [
        ({"layers": 3}, {}, "is for layers 3, expected 2 as in the traces of made-up"),
        ({"head_dim": 8}, {}, "is for head_dim_k 8, expected 4 as in the traces of made-up"),
        ({}, {"--out": "nowhere/p.safetensors"}, "nowhere does not exist"),
        ({}, {"--traces": "nothing"}, "nothing"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(traces, tmp_path, geometry, more, message):
    path = policy_file(tmp_path / "mine.safetensors", **geometry)
    options = {"--traces": traces, "--out": tmp_path / "out.safetensors"} | more
    done = run_command(calibrate, path, *(x for pair in options.items() for x in pair))
    assert isinstance(done.exception, ValueError | FileNotFoundError)
    assert message in str(done.exception)
    assert not (tmp_path / "out.safetensors").exists()


def test_the_shipped_one_ranks_as_the_default():
    before, after = (
        kvp_ext.load_policy(f"smollm2-135m-instruct{name}") for name in ("", "-calibrated")
    )
    assert after.provenance["calibration"]["of"] == before.name
    k, v = torch.randn(
        2, before.layers, 1, before.kv_heads, 60, before.head_dim_k,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    scores = [kvp_ext.score(k, v, torch.arange(60), policy=p) for p in (before, after)]
    order = scores[0].argsort(dim=-1)
    ranked = scores[1].gather(-1, order)
    steps = ranked.diff(dim=-1)
    assert float(steps.min()) > -1e-4 * float(ranked.abs().max())
    assert (steps > 0).float().mean() > 0.999
    assert allocation("share").rows == (30, 3)
