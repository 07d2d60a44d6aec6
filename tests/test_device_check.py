"""bench/device_check.sh short of a GPU: its dry run, and that it reports what goes wrong."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import device_check
import device_parity
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
from device_rivals import PlainPolicy, by_policy, votes
from device_target import HostTarget
from device_timing import table
from helpers import assert_same, make_cache

import kvp_ext
from python_ref import fold

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
    rows = found["steps"]["timing"]["found"]["rows"]
    assert len(rows) == 2 * 8
    for row in rows:
        assert row["ms"]["p5"] <= row["ms"]["median"] <= row["ms"]["p95"]
        assert ("gb_s" in row) == (row["name"] in ("evict_", "score", "compact_"))
    assert sum(" evict_ " in line for line in done.stdout.splitlines()) == 2


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
    assert says == "6 cases on cpu"
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


def test_a_failed_step_costs_that_step_alone(monkeypatch, tmp_path):
    statuses = iter([0, 9, 124, 0, 0, 0])
    monkeypatch.setattr(
        device_check, "run_limited", lambda *a, **o: (next(statuses), "first line\nlast line\n")
    )
    report = device_check.Report(tmp_path / "out.json", is_dry=True)
    assert not device_check.check(list(device_check.STEPS), True, report)
    steps = json.loads((tmp_path / "out.json").read_text())["steps"]
    assert [s["passed"] for s in steps.values()] == [True, False, False, True, True, True]
    assert steps["parity"]["says"] == "last line"
    assert steps["graph"]["says"].startswith("stopped after")
    text = "\n".join(device_check.conclusion({"steps": steps}))
    assert text.count("FAILED") == 2


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


def test_without_a_gpu_the_build_step_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    status, says = device_check.build(False, 10)
    assert status == 1
    assert says.startswith("no GPU")


# ---- formulas and rivals -----------------------------------------------------------------------


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
    paper = kvp_ext.Policy.random(layers=1, kv_heads=1, head_dim=128, architecture="paper")
    # Two gain maps, the input layer with 32 features, the hidden layer, the output.
    by_hand = 2 * 128 * 128 + 256 * (256 + 32) + 256 * 256 + 256
    assert macs_per_entry(paper.folded.tensors) == by_hand


def test_percentiles_and_copies():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([0.0, 10.0], 0.05) == 0.5
    assert summary([1.0, 2.0, 3.0])["iterations"] == 3
    with pytest.raises(ValueError, match="0 samples"):
        percentile([], 0.5)
    assert copies_past_cache(10, 100) == 40
    assert copies_past_cache(3200, 100) == 1
    assert copies_past_cache(1000, 100) == 2


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_the_plain_policy_is_the_same_policy(architecture):
    cache = make_cache(2, 1, 2, 40, 16)
    policy = kvp_ext.Policy.random(
        layers=2, kv_heads=2, head_dim=16, architecture=architecture, max_position=29
    )
    plain = PlainPolicy(policy, torch.float32, cache.pos)
    pos = cache.pos.expand(2, 1, 2, 40)
    exact = fold.score(policy.folded, cache.k, cache.v, pos, dtype=torch.float64)
    for layer in range(2):
        scores = plain.score(layer, cache.k[layer, 0], cache.v[layer, 0])
        assert_same(scores.double(), exact[layer, 0], atol=1e-5)
    k, v = by_policy(plain, 24)(1, cache.k[1, 0], cache.v[1, 0])
    kvp_ext.evict_(cache.k, cache.v, cache.pos, 24, policy=policy)
    assert_same(k, cache.k[1, 0, :, :24])
    assert_same(v, cache.v[1, 0, :, :24])


def test_votes_are_attention():
    k, q = torch.randn(2, 10, 8), torch.randn(6, 3, 8)
    expected = torch.softmax(q @ k.repeat_interleave(3, 0).mT * 8**-0.5, -1)
    assert_same(votes(k, q).reshape(6, 3, 10), expected, atol=1e-6)


def test_the_table_has_a_line_for_each_row():
    row = {"geometry": "g", "slots": 5, "name": "n"}
    found = {
        "ceilings": {"copy_gb_s": 1.0, "matmul_tflop_s": 2.0},
        "keep": 0.25,
        "rows": [row | {"error": "RuntimeError: no"}, row | {"ms": summary([1.0]), "ratio": 1.0}],
    }
    lines = table(found)
    assert len(lines) == 4
    assert "RuntimeError: no" in lines[2]
    assert lines[3].endswith("1.0x")
