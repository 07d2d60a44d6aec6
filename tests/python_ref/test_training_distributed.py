"""Two processes over gloo train the policy that one process trains."""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from python_ref.training.distributed import Parallel

WORKER = Path(__file__).with_name("training_worker.py")


def load_worker():
    spec = importlib.util.spec_from_file_location("training_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_together(folder, processes):
    """The worker in several processes, with the environment that torchrun gives them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder)],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        for worker in workers:
            _, errors = worker.communicate(timeout=300)
            assert worker.returncode == 0, errors
    finally:
        for worker in workers:
            worker.kill()


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Agents and what was measured, by mode: "one" process, "data" and "heads" in two."""
    folder = tmp_path_factory.mktemp("policies")
    run_together(folder, 2)
    worker, threads = load_worker(), torch.get_num_threads()
    torch.set_num_threads(1)
    worker.train(folder / "one.safetensors", Parallel())
    resumed = worker.trainer(Parallel(), checkpoint=folder / "state", resume=True)
    assert resumed.start == (1, 5)
    worker.save_file(resumed.run().state_dict(), folder / "resumed.safetensors")
    torch.set_num_threads(threads)
    return {path.stem: load_file(path) for path in folder.glob("*.safetensors")}


def test_processes_that_share_the_items_train_the_same_policy(policies):
    one, data = policies["one"], policies["data"]
    assert one.keys() == data.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(data[name], tensor, rtol=0, atol=1e-5)


def test_processes_that_share_the_heads_train_the_same_policy(policies):
    one, heads = policies["one"], policies["heads"]
    assert one.keys() == heads.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(heads[name], tensor, rtol=0, atol=1e-6)


def test_a_training_may_go_on_in_fewer_processes(policies):
    """From a checkpoint that two processes with layers of their own left in mid-phase."""
    for name, tensor in policies["resumed"].items():
        torch.testing.assert_close(tensor, policies["one"][name], rtol=0, atol=1e-6)


def test_the_processes_draw_the_items_that_one_draws(policies):
    seen = policies["one"]["seen"]
    assert seen.shape[1] == 4
    assert len(seen.unique()) > 3
    assert torch.equal(policies["data"]["seen"], seen)
    assert torch.equal(policies["heads"]["seen"], seen)


def test_shares():
    shares = [Parallel("data", rank, 2) for rank in range(2)]
    assert [share.items(6) for share in shares] == [slice(0, 3), slice(3, 6)]
    assert [share.layers(5) for share in shares] == [slice(0, 5)] * 2
    shares = [Parallel("heads", rank, 3) for rank in range(3)]
    assert [share.layers(5) for share in shares] == [slice(0, 1), slice(1, 3), slice(3, 5)]
    assert [share.items(7) for share in shares] == [slice(0, 7)] * 3
    with pytest.raises(ValueError, match="items: got 5 a step for 2 processes"):
        Parallel("data", 0, 2).items(5)
    with pytest.raises(ValueError, match="got 3 processes for 2 layers"):
        Parallel("heads", 0, 3).layers(2)
    with pytest.raises(ValueError, match="parallel: got 'both', expected one of"):
        Parallel("both")
