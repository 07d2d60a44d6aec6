"""`kvp-ext train-gate`, on a tiny random model and a text file."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from command_line import run_command, save_tiny_llama
from tiny_tokenizers import byte_level

from kvp_ext.cli.loading import load_model
from kvp_ext.cli.train_gate import train_gate
from kvp_ext.gates import load_gate
from python_ref.gates.log import GateRow
from python_ref.training.log import read

pytestmark = pytest.mark.usefixtures("quiet_command")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """What every command gets: a model, texts and sizes."""
    folder = tmp_path_factory.mktemp("inputs")
    model = save_tiny_llama(folder / "tiny", byte_level())
    lines = [json.dumps({"text": f"The dog number {i} jumps. " * 20}) for i in range(20)]
    (folder / "stories.jsonl").write_text("\n".join(lines))
    size = ["--tokens", 40, "--width", 8, "--threads", 1]
    return ["--model", model, "--source", folder / "stories.jsonl", *size]


def run(*arguments):
    return run_command(train_gate, *arguments)


def weights(path):
    return load_gate(path).state_dict()


def test_a_gate_its_log_and_its_picture(inputs, tmp_path):
    out, rows, picture = (tmp_path / name for name in ("g.safetensors", "log.csv", "log.png"))
    more = ["--steps", 3, "--sequences", 2, "--lr", 1e-3, "--bias", 5, "--seed", 4]
    done = run(*inputs, *more, "--out", out, "--log", rows, "--plot", picture)
    assert done.exit_code == 0, done.exception
    assert f"wrote {out}" in done.output
    assert f"wrote {picture}" in done.output
    gate = load_gate(out)
    assert (gate.layers, gate.kv_heads, gate.model_dim, gate.width) == (2, 2, 32, 8)
    assert gate.name == "g"
    recipe = gate.provenance["recipe"]
    assert (recipe["learning_rate"], recipe["bias"], recipe["capacity"]) == (1e-3, 5, 5)
    assert gate.provenance["data"]["lengths"] == [20, 35]
    assert gate.provenance["data"]["split"] == "train"
    assert [row.step for row in read(rows, kind=GateRow)] == [1, 2, 3]
    assert all(20 < row.tokens <= 40 for row in read(rows, kind=GateRow))
    model, _ = load_model(str(inputs[1]))
    from python_ref.model_info import inspect_model

    assert gate.model_fingerprint == inspect_model(model).fingerprint


def test_a_training_that_is_over_is_resumed_without_a_step(inputs, tmp_path):
    more = ["--steps", 2, "--checkpoint", tmp_path / "ck"]
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    assert "no checkpoint in" in run(*inputs, *more, "--out", first, "--resume").output
    assert "holds one of a training" in str(run(*inputs, *more, "--out", second).exception)
    assert "resumed after step 2 of 2" in run(*inputs, *more, "--out", second, "--resume").output
    assert all(torch.equal(t, weights(second)[name]) for name, t in weights(first).items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "p.png"], "--plot: got no --log"),
        (["--lengths", "20:41"], "--lengths: got 41, expected at most --tokens 40"),
        (["--steps", "0"], "steps: got 0, expected an int, at least 1"),
        (["--resume"], "resume: got no checkpoint folder"),
        (["--source", "nothing.txt"], "source 'nothing.txt': not a file"),
    ],
)
def test_wrong_options_are_named(inputs, tmp_path, arguments, message):
    done = run(*inputs, "--out", tmp_path / "g.safetensors", *arguments)
    assert message in str(done.exception)
    assert not (tmp_path / "g.safetensors").exists()


def test_the_folder_of_the_file_must_exist(inputs, tmp_path):
    done = run(*inputs, "--out", tmp_path / "no" / "g.safetensors")
    assert "--out: the folder" in str(done.exception)


def test_two_processes_train_the_gate_of_one(inputs, tmp_path):
    more = ["--steps", 3, "--sequences", 2, "--bias", 4, "--lr", 1e-2]
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    assert run(*inputs, *more, "--out", one).exit_code == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    arguments = [str(a) for a in (*inputs, *more, "--out", two, "--log", tmp_path / "log.csv")]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "kvp_ext.cli", "train-gate", *arguments],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    for name, t in weights(one).items():
        torch.testing.assert_close(weights(two)[name], t, rtol=1e-2, atol=1e-3)
    assert len(read(tmp_path / "log.csv", kind=GateRow)) == 3


def test_a_name_that_is_not_shipped_is_refused(tmp_path):
    with pytest.raises(ValueError, match="gate 'nothing' is not shipped with kvp-ext"):
        load_gate("nothing")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_gate(tmp_path / "nothing.safetensors")
    with pytest.raises(TypeError, match="name_or_path is 3, expected a name or a path"):
        load_gate(3)
