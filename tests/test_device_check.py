"""bench/device_check.sh short of a GPU: its dry run, and that it reports what goes wrong."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import device_check
import device_graph
import device_parity
import device_table
import pytest
import torch
from device_cases import FAMILIES
from device_formulas import (
    copies_past_cache,
    eviction_cost,
    macs_per_entry,
    percentile,
    summary,
)
from device_rivals import by_policy, compiled, parts, plain_weights, snapkv_scores, tova_scores
from device_rivals import score as plain_score
from device_target import HostTarget
from device_timing import Caches, Geometry, Timed, shares, time_all
from helpers import assert_same, make_cache, random_scores

import kvp_ext
from kvp_ext import _C
from kvp_ext._backends import reference
from kvp_ext._call import prepare
from python_ref import fold, methods

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_dry_run_passes_and_its_file_has_everything(tmp_path):
    out = tmp_path / "found.json"
    done = subprocess.run(
        [ROOT / "bench" / "device_check.sh", "--dry-run", "--out", out],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHON": sys.executable, "PATH": path_with_tools()},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["passed"]
    assert found["dry_run"]
    assert list(found["steps"]) == [step.name for step in device_check.STEPS]
    for step in found["steps"].values():
        assert step["passed"]
        assert not step["skipped"]
        assert step["seconds"] >= 0
    parity = found["steps"]["parity"]["found"]
    assert parity["failed"] == 0
    assert min(parity["checked"].values()) > 100
    timing, rivals = (found["steps"][name]["found"] for name in ("timing", "rivals"))
    assert set(timing["ceilings"]) == {"copy_gb_s", "matmul_tflop_s"}
    assert [row["name"] for row in timing["rows"]] == [*device_table.OURS] * 2
    assert {row["name"] for row in rivals["rows"]} == {*device_table.RIVALS}
    for row in timing["rows"] + rivals["rows"]:
        assert row["ms"]["p5"] <= row["ms"]["median"] <= row["ms"]["p95"]
        assert ("gb_s" in row) == (row["name"] in ("evict_", "score", "compact_"))
    assert not list(tmp_path.glob("*.draft")) + list(tmp_path.glob("found.*.json"))
    table = done.stdout[done.stdout.rindex("build  ") :]
    assert table.count("passed") == len(device_check.STEPS)
    assert table.count("64-wide policy") == 2


def path_with_tools():
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


# ---- what goes wrong is reported ---------------------------------------------------------------


def few_cases():
    return list(FAMILIES["memory"](True))[:6]


def target_on(backend):
    target = HostTarget()
    target.backends = [backend]
    return target


def test_parity_passes_on_a_right_backend():
    recorded = []
    passed, says = device_parity.run_parity(few_cases(), target_on("cpu"), recorded.append)
    assert passed
    assert says == "6 checks on cpu"
    assert recorded[-1]["failed"] == 0


@pytest.mark.parametrize("planted", ["a survivor", "a length", "a canary"])
def test_parity_reports_a_wrong_backend(monkeypatch, planted):
    right = kvp_ext.evict_

    def wrong(k_cache, v_cache, *args, **options):
        result = right(k_cache, v_cache, *args, **options)
        if planted == "a survivor":
            v_cache[0][0, 0, 0, 0] += 1
        elif planted == "a length":
            result.lengths[0, 0, 0] -= 1
        else:
            k = k_cache[0]
            whole = torch.empty(0, dtype=k.dtype).set_(k.untyped_storage())
            whole[-1] = 3
        return result

    monkeypatch.setattr(kvp_ext, "evict_", wrong)
    cases = [c for c in FAMILIES["memory"](True) if "slice" in c.name][:3]
    recorded = []
    passed, says = device_parity.run_parity(cases, target_on("cpu"), recorded.append)
    assert not passed
    assert says.startswith("3 of 3 failed")
    assert all("Mismatch" in failure["error"] for failure in recorded[-1]["failures"])


def test_no_case_in_time_is_no_pass():
    passed, says = device_parity.run_parity(
        few_cases(), target_on("cpu"), lambda found: None, until=time.time() - 1
    )
    assert not passed
    assert says == "0 checks on cpu, then the time was up"


@pytest.mark.parametrize("length", [1, 2, 499, 732, 998])
def test_every_case_has_its_turn(length):
    assert sorted(device_parity.mixed(list(range(length)))) == list(range(length))


def test_graph_checks_report_a_stale_replay():
    problem = device_graph.Problem(HostTarget(), "small", "per_head")
    device_graph.check_replays(problem, HostTarget())

    class Stale(HostTarget):
        """Replays what was captured, and not what is in memory now."""

        def capture(self, run):
            static = run()
            return (lambda: None), static

    with pytest.raises(device_parity.Mismatch, match="replay 1"):
        device_graph.check_replays(problem, Stale())


STEP = """
import json, sys
name, file = sys.argv[1:3]
ceilings = {"copy_gb_s": 1, "matmul_tflop_s": 1}
open(file, "w").write(json.dumps({"ceilings": ceilings, "rows": []}))
if name == "parity":
    sys.exit("Mismatch: k[0]: 3 differ")
if name == "graph":
    import os
    os.abort()
print(name, "says this")
"""


def test_a_failed_step_costs_that_step_alone(monkeypatch, tmp_path, capsys):
    script = tmp_path / "step.py"
    script.write_text(STEP)
    monkeypatch.setattr(device_check, "STEP", [sys.executable, str(script)])
    names = ("parity", "timing", "graph", "memcheck")
    monkeypatch.setattr(device_check, "STEPS", tuple(device_check.Step(name, 20) for name in names))
    out = tmp_path / "out.json"
    assert device_check.main(["--dry-run", "--out", str(out)]) == 1
    content = json.loads(out.read_text())
    assert not content["passed"]
    steps = content["steps"]
    assert [s["passed"] for s in steps.values()] == [False, True, False, True]
    assert steps["parity"]["says"] == "Mismatch: k[0]: 3 differ"
    assert steps["timing"]["says"] == "timing says this"
    assert steps["graph"]["says"].startswith("killed by SIGABRT")
    assert all(s["found"]["rows"] == [] for s in steps.values())
    printed = capsys.readouterr().out
    assert "FAILED: Mismatch: k[0]: 3 differ" in printed


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("a\nb\n", "b"),
        ('  raise ValueError("no")\nValueError: no\nlater\n', "ValueError: no"),
        ("torch.AcceleratorError: CUDA error: an illegal\nx", "torch.AcceleratorError: CUDA"),
        ("error: subprocess-exited-with-error\nf.cu(3): error: x\nnote: y", "f.cu(3): error: x"),
        ("========= COMPUTE\n========= Invalid __global__ read\n9 errors", "========= Invalid"),
        ("", ""),
    ],
)
def test_the_first_error_is_named(output, says):
    assert device_check.first_error(1, output).startswith(says)
    assert device_check.first_error(-11, output).startswith("killed by SIGSEGV; " + says)


def test_time_that_is_up_fails_what_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(device_check, "TOTAL_S", 4)
    report = device_check.Report(tmp_path / "out.json", is_dry=True)
    assert not device_check.check(list(device_check.STEPS), True, report)
    assert {s["says"] for s in report.content["steps"].values()} == {"no time left"}


def test_a_step_that_hangs_is_stopped_with_all_that_it_started():
    start = time.monotonic()
    status, output = device_check.run_limited(["sh", "-c", "echo begun; sleep 60 & sleep 60"], 0.5)
    assert status == 124
    assert output == "begun\n"
    assert time.monotonic() - start < 10


def test_the_steps_fit_eight_minutes():
    assert device_check.TOTAL_S + 20 <= 8 * 60
    assert all(step.limit_s <= device_check.TOTAL_S for step in device_check.STEPS)


def test_an_unknown_step_is_refused(capsys):
    with pytest.raises(SystemExit):
        device_check.main(["--steps", "parity,speed"])
    assert "speed" in capsys.readouterr().err


def test_without_a_gpu_the_build_step_says_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    report = device_check.Report(tmp_path / "out.json", is_dry=False)
    assert not device_check.run_step(device_check.Step("build", 60), False, 60, report)
    assert "Error: " in report.content["steps"]["build"]["says"]


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 9), "89-real"), ((9, 0), "90a-real"), ((12, 0), "120-real")]
)
def test_the_build_is_for_one_architecture(tmp_path, capability, name):
    report = device_check.Report(tmp_path / "out.json", is_dry=False)
    report.content["machine"]["capability"] = capability
    assert device_check.architecture(report) == name


def test_a_sanitizer_looks_at_our_kernels_alone(tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho '  --kernel-regex arg'\n")
    tool.chmod(0o755)
    command = device_check.sanitizer("racecheck", {"PATH": str(tmp_path)})
    assert command[0] == str(tool)
    assert command[-2:] == ["--kernel-regex", "kns=kvp"]
    tool.unlink()
    report = device_check.Report(tmp_path / "out.json", is_dry=False)
    monkeypatch.setattr(device_check, "sanitizer", lambda tool, env: None)
    assert device_check.run_step(device_check.Step("memcheck", 9), False, 9, report)
    assert report.content["steps"]["memcheck"]["skipped"]


def test_the_reference_backend_leaves_device_memory_unread():
    """Counts and positions of a GPU would be a fault on the host, so they are not checked there."""
    cache = make_cache(pos="head")
    policy = kvp_ext.Policy.random(layers=2, kv_heads=2, head_dim=8)
    call = prepare(
        k_cache=cache.k,
        v_cache=cache.v,
        pos=cache.pos,
        scores=random_scores(2, 2, 2, 24),
        lengths=torch.tensor([99, 3]),
        mode="union",
        policy=policy,
    )
    with pytest.raises(ValueError, match="lengths"):
        reference._check(call, _C.OP_SCORE)
    call.device = torch.device("cuda")
    reference._check(call, _C.OP_SCORE)
    call.k[0] = call.k[0][..., ::2]
    with pytest.raises(ValueError, match="k_cache"):
        reference._check(call, _C.OP_SCORE)


# ---- formulas, times and rivals ----------------------------------------------------------------


def test_costs_by_hand():
    """Qwen2.5-7B's geometry, 10,000 tokens: 0.57 GB, and 0.61 TFLOP of the agent as published."""
    entries = 28 * 4 * 10_000
    cost = eviction_cost(scored=entries, moved=0, channels=256, element_bytes=2, macs=271_000)
    assert cost.bytes == 573_440_000
    assert cost.flops == pytest.approx(0.607e12, rel=1e-3)
    assert cost.floor_ms(4300, 790) == pytest.approx(0.768, rel=1e-2)
    moving = eviction_cost(scored=0, moved=1000, channels=256, element_bytes=2, macs=1)
    assert (moving.bytes, moving.flops) == (2 * 1000 * 512, 0)
    assert moving.floor_ms(1, 1) == pytest.approx(1.024)


def test_products_of_an_entry():
    """The agent as published has 0.54 MFLOP; folded, as the kernels evaluate it, 0.34."""
    paper = kvp_ext.Policy.random(layers=1, kv_heads=1, head_dim=128, architecture="paper")
    # Two gain maps, the input layer with 32 features, the hidden layer, the output.
    by_hand = 2 * 128 * 128 + 256 * (256 + 32) + 256 * 256 + 256
    assert macs_per_entry(paper.folded.tensors) == by_hand
    published = 2 * 128 * 256 + 256 * (256 + 256 + 32) + 256 * 256 + 256
    assert 2 * published == pytest.approx(0.54e6, rel=1e-2)


def test_shares_of_the_ceilings():
    cost = eviction_cost(scored=1000, moved=0, channels=256, element_bytes=2, macs=1000)
    found = shares(cost, 0.001, {"copy_gb_s": 1024.0, "matmul_tflop_s": 4.0})
    assert found["gb_s"] == pytest.approx(512)
    assert found["tflop_s"] == pytest.approx(2)
    assert found["share_of_copy"] == pytest.approx(0.5)
    assert found["share_of_matmul"] == pytest.approx(0.5)
    assert found["share_of_floor"] == pytest.approx(0.5)


def test_percentiles_and_copies():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([0.0, 10.0], 0.05) == 0.5
    assert summary([1.0, 2.0, 3.0])["iterations"] == 3
    with pytest.raises(ValueError, match="0 samples"):
        percentile([], 0.5)
    assert copies_past_cache(10, 100) == 40
    assert copies_past_cache(3200, 100) == 1
    assert copies_past_cache(1000, 100) == 2


GEOMETRY = Geometry("g", "small", 2, 4, 2, 16, (40,))


def test_caches_take_turns_and_are_restored():
    caches = Caches(GEOMETRY, 40, HostTarget())
    assert caches.budget == 10

    def spoiled():
        pair = caches.next()
        assert not any((x == 7).any() for x in pair)
        for x in pair:
            x[..., :10, :] = 7  # as an eviction would
        return pair[0].data_ptr()

    turns = [spoiled() for _ in range(12)]
    n = len(set(turns))
    assert n >= 2
    assert turns == (turns[:n] * 12)[:12]


def test_a_time_that_fails_leaves_the_others(monkeypatch):
    def entrants(geometry, policy, caches, target):
        yield Timed("wrong", tuple, lambda: 1 / 0)
        yield Timed("right", tuple, lambda: None)

    recorded = []
    passed, says = time_all(entrants, HostTarget(), recorded.append, until=time.time() + 60)
    assert not passed
    assert says.startswith("2 of 4 failed, first the paper's agent, 120, wrong, ZeroDivisionError")
    assert ["ms" in row for row in recorded[-1]["rows"]] == [False, True] * 2
    assert time_all(entrants, HostTarget(), recorded.append, until=0.0)[0] is False


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_the_plain_policy_is_the_same_policy(architecture):
    cache = make_cache(2, 1, 2, 80, 16)
    policy = kvp_ext.Policy.random(
        layers=2, kv_heads=2, head_dim=16, architecture=architecture, max_position=29
    )
    weights = plain_weights(policy, torch.float32)
    exact = fold.score(policy.folded, cache.k, cache.v, cache.pos, dtype=torch.float64)
    k, v = cache.k.flatten(0, 2), cache.v.flatten(0, 2)
    scores = plain_score(weights, policy.folded.norm_eps, k, v, cache.pos)
    assert_same(scores.double(), exact.flatten(0, 2), atol=1e-5)
    arguments = (weights, policy.folded.norm_eps, cache.pos, k, v)
    eager, traced = by_policy(*arguments), compiled(HostTarget())(*arguments)
    kvp_ext.evict_(cache.k, cache.v, cache.pos, 20, policy=policy, sinks=4, recent=16)
    for of_eager, of_traced, ours in zip(eager, traced, (cache.k, cache.v), strict=True):
        assert_same(of_eager, ours.flatten(0, 2)[:, :20])
        assert_same(of_traced, of_eager)


def test_rivals_are_the_published_methods():
    g = torch.Generator().manual_seed(0)
    k, q = torch.randn(2, 2, 40, 8, generator=g), torch.randn(2, 6, 9, 8, generator=g)
    expected = methods.methods()["tova"](k=k, q=q)
    assert_same(tova_scores(q[:, :, -1:], k), expected, atol=1e-6)
    expected = methods.methods()["snapkv"](k=k, q=q, window=9)
    scores = snapkv_scores(q, k)
    assert_same(scores[..., :-9], expected[..., :-9], atol=1e-6)
    assert bool(scores[..., -9:].isposinf().all())


def test_parts_cover_all_layers():
    assert parts(28, 1 << 30) == [slice(i, i + 4) for i in range(0, 28, 4)]
    assert parts(3, 1 << 40) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert parts(3, 1) == [slice(0, 3)]


def test_the_table_says_what_is_missing():
    ms = {"ms": summary([2.0]), "host_ms": 0.5}
    evict = {"geometry": "g", "slots": 5, "name": "evict_", "share_of_floor": 0.5}
    evict |= {"share_of_copy": 0.25, "share_of_matmul": 0.125} | ms
    failed = {"geometry": "g", "slots": 5, "name": "score", "error": "RuntimeError: no"}
    timing = {"ceilings": {"copy_gb_s": 1.0, "matmul_tflop_s": 2.0}, "rows": [evict, failed]}
    line = device_table.ours(timing)[-1]
    assert " ".join(line.split()) == "g 5 2.000 2.000 2.000 50% 25% 12% failed 0.500"
    tova = {"geometry": "g", "slots": 5, "name": "TOVA", "ms": summary([3.0])}
    assert device_table.rivals(timing, {"rows": [tova]})[-1].split() == [
        "g",
        "5",
        "3.000",
        "(1.5x)",
    ]
