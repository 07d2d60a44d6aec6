import pytest
import torch


@pytest.fixture
def one_thread():
    """Tiny models spend their time on waking threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def uncompiled():
    """FlexAttention as written: compiled for a CPU it fails on any mask whose length changes.

    That holds for transformers' own padding masks too, in torch 2.13.
    """
    with torch.compiler.set_stance("force_eager"):
        yield
