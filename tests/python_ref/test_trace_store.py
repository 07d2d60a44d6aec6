import dataclasses
import json
import math
import struct
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open

from python_ref.model_info import ModelInfo
from python_ref.training import trace_store
from python_ref.training.manifest import Manifest
from python_ref.training.trace_store import (
    TraceReader,
    TraceWriter,
    bytes_per_token,
    trace_bytes,
    utility_bytes_per_token,
)
from python_ref.training.traces import Queries, Trace, TraceOptions

MODEL = ModelInfo("some/model", "0123456789abcdef", "float32", 2, 6, 3, 8, 4)
OPTIONS = TraceOptions()
# Of a made trace of 40 tokens, one split: keys and values, utility, marks.
ONE = 40 * (2 * 6 * (8 + 4) + 4 * 6 + 1)


def made(seed, tokens=40, splits=(40,), dtype=torch.float16, queries=False):
    g = torch.Generator().manual_seed(seed)
    stored = None
    if queries:
        stored = Queries(
            8,
            torch.randn(2, 6, 50, 8, generator=g).half(),
            torch.rand(2, 6, 50, generator=g),
            torch.zeros(2, 50, dtype=torch.int32),
            torch.full((2,), 0.5),
            torch.full((2,), torch.inf),
        )
    return Trace(
        f"kind {seed}",
        torch.randn(2, 3, tokens, 8, generator=g).to(dtype),
        torch.randn(2, 3, tokens, 4, generator=g).to(dtype),
        splits,
        tuple(torch.rand(2, 3, n, generator=g) for n in splits),
        torch.rand(tokens, generator=g) < 0.3,
        stored,
    )


def fill(folder, seeds, **options):
    with TraceWriter(folder, MODEL, OPTIONS, **options) as writer:
        for seed in seeds:
            if f"d{seed}" not in writer.done:
                writer.add(f"d{seed}", made(seed))
    return writer


def assert_same_trace(a, b):
    assert (a.kind, a.splits) == (b.kind, b.splits)
    for name in ("k", "v", "marked"):
        assert torch.equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert len(a.utilities) == len(b.utilities)
    assert all(map(torch.equal, a.utilities, b.utilities))
    assert (a.queries is None) == (b.queries is None)
    if a.queries is not None:
        assert a.queries.start == b.queries.start
        for name in ("q", "log_total", "visible_from", "scale", "softcap"):
            assert torch.equal(getattr(a.queries, name), getattr(b.queries, name))


def test_what_is_read_is_what_was_added(tmp_path):
    traces = [made(0), made(1, 55, (20, 31, 55)), made(2, 40, (9, 40), queries=True), made(3)]
    with TraceWriter(tmp_path / "new" / "folder", MODEL, OPTIONS, shard_bytes=2 * ONE) as writer:
        for i, trace in enumerate(traces):
            writer.add(f"d{i}", trace)
    reader = TraceReader(str(tmp_path / "new" / "folder"))
    assert len(reader) == 4
    for read, trace in zip(reader, traces, strict=True):
        assert_same_trace(read, trace)
    assert_same_trace(reader[-1], traces[3])
    assert [trace.kind for trace in reader[1:3]] == ["kind 1", "kind 2"]
    with pytest.raises(IndexError):
        reader[4]
    manifest = reader.manifest
    assert (manifest.layers, manifest.kv_heads) == (2, 3)
    assert (manifest.head_dim_k, manifest.head_dim_v) == (8, 4)
    assert (manifest.model, manifest.options, manifest.dtype) == (MODEL, OPTIONS, "float16")
    assert (manifest.longest, manifest.tokens) == (55, 175)
    assert [(d.digest, d.tokens, d.splits) for d in manifest.documents[:2]] == [
        ("d0", 40, (40,)),
        ("d1", 55, (20, 31, 55)),
    ]


def test_a_bfloat16_model_keeps_bfloat16(tmp_path):
    model = dataclasses.replace(MODEL, dtype="bfloat16")
    with TraceWriter(tmp_path, model, OPTIONS) as writer:
        writer.add("d0", made(0, dtype=torch.bfloat16))
        with pytest.raises(ValueError, match=r"k: got .*float16, expected .* bfloat16"):
            writer.add("d1", made(1))
    reader = TraceReader(tmp_path)
    assert reader.manifest.dtype == "bfloat16"
    assert_same_trace(reader[0], made(0, dtype=torch.bfloat16))


def test_shards_are_no_larger_than_asked(tmp_path):
    writer = fill(tmp_path, range(7), shard_bytes=3 * ONE)
    sizes = list(writer.manifest.shards.values())
    names = [f"shard-0000{i}.safetensors" for i in range(3)]
    assert list(writer.manifest.shards) == names
    counts = [len(list(safe_open(tmp_path / name, "pt").keys())) // 4 for name in names]
    assert counts == [3, 3, 1]
    headers = [size - n * ONE for size, n in zip(sizes, (3, 3, 1), strict=True)]
    assert all(0 < header < 1500 for header in headers)
    assert writer.manifest.bytes == sum(sizes)
    for name, size in writer.manifest.shards.items():
        assert (tmp_path / name).stat().st_size == size
    # A trace that is larger than a shard is a shard.
    fill(tmp_path / "b", range(2), shard_bytes=1)
    assert len(TraceReader(tmp_path / "b").manifest.shards) == 2


def test_memory_holds_one_shard(tmp_path):
    with TraceWriter(tmp_path, MODEL, OPTIONS, shard_bytes=3 * ONE) as writer:
        for i in range(7):
            writer.add(f"d{i}", made(i))
            assert writer.bytes - writer.manifest.bytes == ((i + 1) % 3) * ONE
            assert len(TraceReader(tmp_path)) == (i + 1) // 3 * 3 if i >= 2 else True


def test_reading_maps_files_and_loads_nothing(tmp_path):
    """Views of the file: a tensor sees what the file holds when it is used, not when opened."""
    fill(tmp_path, range(2))
    reader = TraceReader(tmp_path)
    k = reader[0].k
    (name,) = reader.manifest.shards
    raw = (tmp_path / name).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    start, _ = json.loads(raw[8 : 8 + length])["d0.k"]["data_offsets"]
    with (tmp_path / name).open("r+b") as file:
        file.seek(8 + length + start)
        file.write(struct.pack("<e", 1234.0))
    assert k.flatten()[0] == 1234.0
    assert torch.equal(k.flatten()[1:], made(0).k.flatten()[1:])


def test_a_restart_adds_what_is_missing(tmp_path):
    fill(tmp_path, range(3), shard_bytes=2 * ONE, corpus={"seed": 0})
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("shard-*")}
    with TraceWriter(tmp_path, MODEL, OPTIONS, corpus={"seed": 1}) as writer:
        assert writer.done == {"d0", "d1", "d2"}
        with pytest.raises(ValueError, match="digest: d1 is in the folder already"):
            writer.add("d1", made(1))
        writer.add("d3", made(3))
    assert {n: (tmp_path / n).stat().st_mtime_ns for n in before} == before
    reader = TraceReader(tmp_path)
    assert [trace.kind for trace in reader] == [f"kind {i}" for i in range(4)]
    assert_same_trace(reader[3], made(3))
    assert list(reader.manifest.shards)[-1] == "shard-00002.safetensors"
    assert reader.manifest.corpora == [{"seed": 0}, {"seed": 1}]


def test_an_error_loses_nothing_that_was_added(tmp_path):
    def interrupted():
        with TraceWriter(tmp_path, MODEL, OPTIONS, shard_bytes=2 * ONE) as writer:
            for i in range(3):
                writer.add(f"d{i}", made(i))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [trace.kind for trace in TraceReader(tmp_path)] == ["kind 0", "kind 1", "kind 2"]


def test_a_full_disk_leaves_no_half_shard(tmp_path, monkeypatch):
    save = trace_store.save_file

    def full(tensors, path):
        save(tensors, path)
        with open(path, "r+b") as file:
            file.truncate(100)
        raise OSError(28, "No space left on device")

    fill(tmp_path, [0])
    monkeypatch.setattr(trace_store, "save_file", full)
    with (
        pytest.raises(RuntimeError, match=r"shard-00001.safetensors cannot be written.*No space"),
        TraceWriter(tmp_path, MODEL, OPTIONS) as writer,
    ):
        writer.add("d1", made(1))
    assert sorted(p.name for p in tmp_path.glob("*.*")) == [
        ".lock",
        "manifest.json",
        "shard-00000.safetensors",
    ]
    monkeypatch.undo()
    assert len(TraceReader(tmp_path)) == 1
    fill(tmp_path, [0, 1])
    assert_same_trace(TraceReader(tmp_path)[1], made(1))


def test_a_killed_process_leaves_what_was_complete(tmp_path):
    """A draft that was not renamed and a shard that the manifest does not name are no traces."""
    fill(tmp_path, [0])
    shard = (tmp_path / "shard-00000.safetensors").read_bytes()
    (tmp_path / "shard-00001.safetensors").write_bytes(shard)
    (tmp_path / "shard-00002.safetensors.draft").write_bytes(shard[:50])
    (tmp_path / "manifest.json.draft").write_text("{")
    assert len(TraceReader(tmp_path)) == 1
    fill(tmp_path, [0, 1])
    assert not list(tmp_path.glob("*.draft"))
    assert [trace.kind for trace in TraceReader(tmp_path)] == ["kind 0", "kind 1"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({"fingerprint": "f" * 16}, {}, "fingerprint is '0123456789abcdef' there and 'ffff"),
        ({"dtype": "bfloat16"}, {}, "dtype is 'float32' there and 'bfloat16' here"),
        ({}, {"horizon": 9}, "horizon is 300 there and 9 here"),
        ({}, {"splits": 2, "seed": 5}, "splits is 6 there and 2 here; seed is 0 there and 5 here"),
        ({}, {"store": "queries"}, "store is 'utilities' there and 'queries' here"),
    ],
)
def test_another_model_or_other_options_are_refused(tmp_path, model, options, message):
    fill(tmp_path, [0])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message):
        TraceWriter(
            tmp_path, dataclasses.replace(MODEL, **model), dataclasses.replace(OPTIONS, **options)
        )
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    fill(tmp_path, [1])  # the lock was given back


def test_a_model_may_have_another_name(tmp_path):
    fill(tmp_path, [0])
    with TraceWriter(tmp_path, dataclasses.replace(MODEL, name="/a/copy"), OPTIONS) as writer:
        assert writer.done == {"d0"}


def damage(path, how):
    if how == "missing":
        path.unlink()
    elif how == "cut":
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
    elif how == "header":
        with path.open("r+b") as file:
            file.write(b"\xff" * 16)
    else:  # of the same size, with other documents
        content = path.read_bytes()
        path.write_bytes(content.replace(b"d2.", b"x2."))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "is missing"),
        ("cut", r"has [\d,]+ bytes, expected [\d,]+"),
        ("header", "cannot be read"),
        ("swapped", "does not hold the documents"),
    ],
)
def test_damaged_shards(tmp_path, how, message):
    fill(tmp_path, range(6), shard_bytes=2 * ONE)
    damage(tmp_path / "shard-00001.safetensors", how)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for opened in (lambda: TraceReader(tmp_path), lambda: TraceWriter(tmp_path, MODEL, OPTIONS)):
        with pytest.raises(ValueError, match=rf"shard-00001.safetensors {message}") as error:
            opened()
        assert "2 of 6 documents" in str(error.value)
        assert "--repair" in str(error.value)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before

    with TraceWriter(tmp_path, MODEL, OPTIONS, repair=True) as writer:
        assert writer.done == {"d0", "d1", "d4", "d5"}
        assert not (tmp_path / "shard-00001.safetensors").exists()
        for i in (2, 3):
            writer.add(f"d{i}", made(i))
    reader = TraceReader(tmp_path)
    assert [trace.kind for trace in reader] == [f"kind {i}" for i in (0, 1, 4, 5, 2, 3)]
    assert_same_trace(reader[4], made(2))


def test_two_writers_on_one_folder(tmp_path):
    with TraceWriter(tmp_path, MODEL, OPTIONS):
        with pytest.raises(RuntimeError, match="another process is writing traces there"):
            TraceWriter(tmp_path, MODEL, OPTIONS)
        # A process of its own finds the lock as well.
        code = "import filelock, sys; filelock.FileLock(sys.argv[1]).acquire(timeout=0)"
        command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert "Timeout" in other.stderr
    fill(tmp_path, [0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a manifest of traces"),
        ("[]", "is not a manifest of traces"),
        ('{"format": "kvp-ext traces", "version": 99}', "'kvp-ext traces', 99"),
        ('{"format": "kvp-ext traces", "version": 1}', "is not a manifest of traces: KeyError"),
    ],
)
def test_a_manifest_that_cannot_be_read(tmp_path, content, message):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        TraceReader(tmp_path)
    with pytest.raises(ValueError, match=message):
        TraceWriter(tmp_path, MODEL, OPTIONS)
    assert (tmp_path / "manifest.json").read_text() == content


def test_a_manifest_older_than_an_option(tmp_path):
    """Before there was an answer share, every query of a branch counted alike."""
    fill(tmp_path, [0])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["options"]["answer_share"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert TraceReader(tmp_path).manifest.options == dataclasses.replace(OPTIONS, answer_share=0.0)


def test_a_folder_without_traces(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"manifest.json is missing"):
        TraceReader(tmp_path)
    with TraceWriter(tmp_path, MODEL, OPTIONS):
        pass
    assert not (tmp_path / "manifest.json").exists()


def test_traces_of_another_geometry_are_refused(tmp_path):
    with TraceWriter(tmp_path, MODEL, OPTIONS) as writer:
        wrong = made(0)
        wrong.v = wrong.v[..., :3]
        with pytest.raises(ValueError, match=r"v: got \[2, 3, 40, 3\].* expected \[2, 3, 40, 4\]"):
            writer.add("d0", wrong)
    with pytest.raises(ValueError, match="shard_bytes: got 0"):
        TraceWriter(tmp_path, MODEL, OPTIONS, shard_bytes=0)


def test_a_manifest_is_replaced_at_once(tmp_path):
    fill(tmp_path, [0])
    first = (tmp_path / "manifest.json").stat().st_ino
    manifest = Manifest.read(tmp_path)
    manifest.write(tmp_path)
    assert (tmp_path / "manifest.json").stat().st_ino != first
    assert Manifest.read(tmp_path) == manifest
    assert not list(tmp_path.glob("*.draft"))


def test_bytes():
    """The numbers of the module's docstring."""
    assert trace_bytes(made(0)) == ONE
    smollm2 = ModelInfo("", "", "float32", 30, 9, 3, 64, 64)
    qwen = ModelInfo("", "", "bfloat16", 28, 28, 4, 128, 128)
    text = " ".join((trace_store.__doc__ or "").split())
    for model, name in ((smollm2, "SmolLM2-135M:"), (qwen, "Qwen2.5-7B:")):
        plain = bytes_per_token(model)
        queries = bytes_per_token(model, queries=True) - plain
        splits = utility_bytes_per_token(model)
        assert f"{name} {plain:,} + {splits:,} a split, queries {queries:,}" in text
    # What the paper keeps: q, k and v in 16 bits.
    paper = 2 * 28 * 28 * 128 + bytes_per_token(qwen)
    assert f"{paper:,} bytes a token" in text
    tokens = 1.2e12 / 4600 / paper
    assert f"of {tokens:,.0f} tokens" in text
    # Points log-uniform in [128, n): their mean is (n - 128) / ln(n / 128).
    behind = 1 + 6 * (1 - 128 / tokens) / math.log(tokens / 128)
    ours = 4600 * tokens * (bytes_per_token(qwen) + 1 + behind * utility_bytes_per_token(qwen))
    assert f"are {ours / 1e12:.2f} TB" in text
    assert f"takes {ours / 4600 / tokens * 1000 / 1e6:.0f} MB for Qwen2.5-7B" in text
