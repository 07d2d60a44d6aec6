"""Several folders of traces as one."""

import dataclasses

import pytest
import torch

from python_ref.model_info import ModelInfo
from python_ref.training.trace_pool import TracePool
from python_ref.training.trace_store import TraceWriter
from python_ref.training.traces import Trace, TraceOptions

MODEL = ModelInfo("some/model", "0123456789abcdef", "float32", 2, 2, 1, 4, 4)


def made(kind, tokens):
    g = torch.Generator().manual_seed(tokens)
    k, v = (torch.randn(2, 1, tokens, 4, generator=g).half() for _ in range(2))
    utility = torch.rand(2, 1, tokens, generator=g)
    return Trace(kind, k, v, (tokens,), (utility,), torch.zeros(tokens, dtype=torch.bool))


def write(folder, traces, model=MODEL):
    with TraceWriter(folder, model, TraceOptions()) as writer:
        for number, trace in enumerate(traces):
            writer.add(f"{folder.name}{number}", trace)
    return folder


@pytest.fixture
def folders(tmp_path):
    first = write(tmp_path / "a", [made("ruler/vt", 5), made("dialogue", 6), made("ruler/cwe", 7)])
    return [first, write(tmp_path / "b", [made("novel", 8), made("dialogue", 9)])]


def lengths(pool):
    return [trace.k.shape[2] for trace in pool]


def test_all_traces_one_folder_after_the_other(folders):
    pool = TracePool(folders)
    assert len(pool) == 5
    assert lengths(pool) == [5, 6, 7, 8, 9]
    assert lengths(pool[1:4]) == [6, 7, 8]
    assert torch.equal(pool[3].k, made("novel", 8).k)
    assert torch.equal(pool[-1].utilities[0], made("dialogue", 9).utilities[0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kinds": ["ruler/*"]}, [5, 7]),
        ({"kinds": ["dialogue", "novel"]}, [6, 8, 9]),
        ({"without": ["ruler/vt", "novel"]}, [6, 7, 9]),
        ({"kinds": ["ruler/*"], "without": ["ruler/vt"]}, [7]),
    ],
)
def test_kinds(folders, options, expected):
    assert lengths(TracePool(folders, **options)) == expected


def test_summary_counts_what_was_chosen(folders):
    summary = TracePool(folders, without=["ruler/*"]).summary()
    assert summary["kinds"] == {"dialogue": 2, "novel": 1}
    assert (summary["count"], summary["tokens"], summary["longest"]) == (3, 23, 9)
    assert summary["model"]["fingerprint"] == MODEL.fingerprint


def test_no_folder():
    with pytest.raises(ValueError, match="traces: got no folder"):
        TracePool([])


def test_another_model(folders, tmp_path):
    other = dataclasses.replace(MODEL, name="other/model", fingerprint="f" * 16)
    third = write(tmp_path / "c", [made("novel", 4)], other)
    with pytest.raises(ValueError, match=r"c is of other/model .* expected some/model"):
        TracePool([*folders, third])


def test_a_pattern_without_a_match(folders):
    with pytest.raises(ValueError, match="'rulr/\\*' matches none .* dialogue, novel, ruler/cwe"):
        TracePool(folders, kinds=["rulr/*"])
    with pytest.raises(ValueError, match="'needles' matches none"):
        TracePool(folders, without=["needles"])
    with pytest.raises(ValueError, match="every document is left out"):
        TracePool(folders, without=["*"])
