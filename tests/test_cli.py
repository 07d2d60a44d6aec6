"""The command line."""

import subprocess
import sys
from pathlib import Path

import pytest

import kvp_ext

COMMAND = str(Path(sys.executable).with_name("kvp-ext"))


def run(*arguments: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, **kwargs
    )


def test_backends_lists_what_is_there_and_what_is_not():
    done = run("backends")
    assert done.returncode == 0
    assert "cpu" in done.stdout
    assert "no CUDA backend" in done.stdout


def test_info_shows_a_policy(tmp_path):
    path = tmp_path / "mine.safetensors"
    policy = kvp_ext.Policy.random(layers=2, kv_heads=3, head_dim=8, architecture="paper")
    policy.save(path)
    done = run("info", str(path))
    assert done.returncode == 0
    assert "2 layers, 3 KV heads, head dim 8" in done.stdout
    assert "paper, 256 wide" in done.stdout


@pytest.mark.parametrize("name", ["no-such-policy", "/no/such/file.safetensors"])
def test_a_mistake_is_one_message(name):
    done = run("info", name)
    assert done.returncode == 1
    assert name in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr


def test_version_and_help():
    assert kvp_ext.__version__ in run("--version").stdout
    for word in ("demo", "info", "backends"):
        assert word in run("--help").stdout


@pytest.mark.model
def test_demo_shows_every_method_and_a_picture(tmp_path):
    done = run("demo", "--tokens", "400", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for word in ("full cache", "KVP", "StreamingLLM", "KeyDiff", "SnapKV", "Prefill took"):
        assert word in done.stdout
    picture = tmp_path / "demo.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "Warning" not in done.stderr
