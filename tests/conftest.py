import pytest
import torch
from helpers import BACKENDS


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend in turn."""
    return request.param


@pytest.fixture
def quiet_command(monkeypatch):
    """A command runs on one thread and prints lines that are not wrapped."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("COLUMNS", "250")
    yield
    torch.set_num_threads(threads)
