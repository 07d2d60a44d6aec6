import multiprocessing
import time
from pathlib import Path

import pytest

from python_ref.artifacts import build_once, cache_dir, replacing


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVP_EXT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_environment_moves_the_cache(cache, monkeypatch, tmp_path):
    assert cache_dir() == cache
    monkeypatch.delenv("KVP_EXT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "kvp-ext"


def test_a_folder_is_built_once(cache):
    def build(folder: Path) -> None:
        (folder / "a").write_text("first")

    assert build_once("thing", build) == cache / "thing"
    assert build_once("thing", lambda folder: pytest.fail("built again")) == cache / "thing"
    assert (cache / "thing" / "a").read_text() == "first"


def test_an_interrupted_build_leaves_nothing_behind(cache):
    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once("thing", build)
    assert [path.name for path in cache.iterdir()] == ["thing.lock"]


def _build_slowly(log: str) -> None:
    def build(folder: Path) -> None:
        with open(log, "a") as file:
            file.write("x")
        time.sleep(0.2)

    build_once("thing", build)


def test_concurrent_processes_build_once(tmp_path):
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_build_slowly, args=(str(log),)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert log.read_text() == "x"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "page.html"
    with replacing(path) as draft:
        draft.write_text("old")
        assert not path.exists()
    with pytest.raises(UnicodeEncodeError), replacing(path) as draft:
        draft.write_text("half, then \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
