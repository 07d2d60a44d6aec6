import json
import math

import pytest

from python_ref.evaluation.curves import curve, draw_curves
from python_ref.evaluation.records import (
    Record,
    append_records,
    chosen,
    read_records,
)
from python_ref.evaluation.statistics import wilson_interval
from python_ref.evaluation.summary import summarise
from python_ref.evaluation.tables import as_json, grid, markdown, rich_table


def record(method, document, budget=0.25, metric="exact_match", questions=1, **changes):
    values = {
        "model": "m",
        "task": "needles",
        "kind": "noise",
        "document": document,
        "protocol": "after",
        "branch": None,
        "method": method,
        "fingerprint": "",
        "allocator": "uniform",
        "budget": budget,
        "sinks": 4,
        "recent": 16,
        "metric": metric,
        "n": 400,
        "kept": 400 if method == "full" else 100,
        "questions": questions,
        "tokens": 3 * questions,
    }
    metrics = {k: v for k, v in changes.items() if k not in values}
    values |= {k: v for k, v in changes.items() if k in values}
    return Record(**values, metrics=metrics)


def proportion_records():
    """Ten documents of one question: full 8 right, kvp 6, snapkv 2 (documents 0 and 1)."""
    records = []
    for i in range(10):
        records.append(record("full", str(i), budget=1.0, exact_match=float(i < 8)))
        records.append(record("kvp", str(i), exact_match=float(i < 6), cost=1.1, lost=1.5))
        records.append(record("snapkv", str(i), exact_match=float(i < 2), cost=2.1, lost=3.5))
    return records


def by_metric(summaries):
    return {summary.metric: summary for summary in summaries}


def cells(summary):
    return {(cell.method, cell.budget): cell for cell in summary.cells}


def test_a_proportion_has_wilsons_interval_and_a_paired_difference():
    summary = summarise(proportion_records(), reference="kvp")[0]
    assert (summary.metric, summary.primary, summary.reference) == ("exact_match", True, "kvp")
    assert summary.full.value == pytest.approx(0.8)
    kvp, snapkv = summary.cells
    assert (kvp.method, kvp.budget, kvp.kept) == ("kvp", 0.25, 100)
    assert (kvp.documents, kvp.questions) == (10, 10)
    assert kvp.value == pytest.approx(0.6)
    assert kvp.share == pytest.approx(0.6 / 0.8)
    assert kvp.interval == pytest.approx(wilson_interval(6, 10))
    assert kvp.difference is None
    assert snapkv.difference == pytest.approx(-0.4)
    # The pairs are 4 losses and 6 ties: the bootstrap of a share of .4 of ten, negated.
    low, high = snapkv.difference_interval
    assert low == pytest.approx(-0.7, abs=0.01)
    assert high == pytest.approx(-0.1, abs=0.01)


def test_ways_to_share_are_rows_of_their_own():
    records = proportion_records()
    for i in range(10):
        shared = {"allocator": "pyramid", "cost": 1.1, "lost": 1.2, "longest": 180.0}
        records.append(record("kvp", str(i), exact_match=float(i < 7), **shared))
    by_name = by_metric(summarise(records, reference="kvp"))
    exact = by_name["exact_match"]
    assert exact.reference == "kvp"
    assert [cell.label for cell in exact.cells] == ["kvp", "snapkv", "kvp + pyramid"]
    kvp, _, pyramid = exact.cells
    assert kvp.difference is None
    assert pyramid.value == pytest.approx(0.7)
    assert pyramid.difference == pytest.approx(0.1)
    assert [row[0][0] for row in grid(exact)] == ["method", "kvp", "snapkv", "kvp + pyramid"]
    # A ranking's cost over all budgets has nothing to share.
    assert [cell.label for cell in by_name["cost"].cells] == ["kvp", "snapkv"]
    assert [cell.label for cell in by_name["longest"].cells] == ["kvp + pyramid"]
    assert json.loads(as_json([exact]))[0]["cells"][2]["allocator"] == "pyramid"
    assert [c.value for c in curve(exact, "kvp + pyramid")] == [pytest.approx(0.7)]
    # The reference may never have shared evenly.
    alone = [r for r in records if r.allocator == "pyramid"]
    alone.append(record("kvp", "0", exact_match=1.0, allocator="adakv"))
    only = summarise(alone, reference="kvp")[0]
    assert only.reference == "kvp + pyramid"
    assert [cell.difference for cell in only.cells] == [None, 0.0]


def test_pairs_are_documents():
    """Both methods vary from document to document, but by the same amount: no doubt is left."""
    records = []
    for i in range(8):
        records.append(record("kvp", str(i), metric="rouge_l", rouge_l=i / 10))
        records.append(record("snapkv", str(i), metric="rouge_l", rouge_l=i / 10 + 0.1))
    snapkv = cells(summarise(records, reference="kvp")[0])["snapkv", 0.25]
    assert snapkv.difference == pytest.approx(0.1)
    assert snapkv.difference_interval == pytest.approx((0.1, 0.1))
    assert snapkv.interval[1] - snapkv.interval[0] > 0.2


def test_differences_use_the_documents_that_both_have():
    records = [record("kvp", str(i), exact_match=1.0) for i in range(3)]
    records += [record("snapkv", "0", exact_match=0.0), record("snapkv", "9", exact_match=1.0)]
    snapkv = cells(summarise(records)[0])["snapkv", 0.25]
    assert snapkv.value == 0.5
    assert snapkv.difference == -1.0


def test_questions_and_tokens_weigh():
    records = [
        record("kvp", "a", questions=1, tokens=2, exact_match=1.0, nll=1.0),
        record("kvp", "b", questions=3, tokens=10, exact_match=0.0, nll=2.0),
    ]
    found = by_metric(summarise(records))
    assert found["exact_match"].cells[0].value == 0.25
    assert found["nll"].cells[0].value == pytest.approx(22 / 12)


def test_several_questions_on_a_document_never_narrow_the_interval():
    """Questions that stand or fall together are worth one: the bootstrap sees it."""
    together = [record("kvp", str(i), questions=4, exact_match=float(i % 2)) for i in range(10)]
    (low, high) = summarise(together)[0].cells[0].interval
    wilson = wilson_interval(20, 40)
    assert low < wilson[0] - 0.05
    assert high > wilson[1] + 0.05
    certain = [record("kvp", str(i), questions=4, exact_match=1.0) for i in range(10)]
    assert summarise(certain)[0].cells[0].interval == pytest.approx(wilson_interval(40, 40))


def test_a_perplexity_is_the_exponential_of_all_tokens_mean():
    records = []
    for document, tokens, nll in (("a", 100, 3.0), ("b", 300, 2.0)):
        for method, more in (("full", 0.0), ("kvp", 0.0), ("snapkv", 0.5)):
            budget = 1.0 if method == "full" else 0.25
            records.append(
                record(method, document, budget, metric="perplexity", tokens=tokens, nll=nll + more)
            )
    found = summarise(records)
    assert [summary.metric for summary in found] == ["perplexity"]
    full = math.exp(900 / 400)
    assert found[0].full.value == pytest.approx(full)
    snapkv = cells(found[0])["snapkv", 0.25]
    assert snapkv.value == pytest.approx(full * math.exp(0.5))
    assert snapkv.share == pytest.approx(math.exp(0.5))
    assert snapkv.difference == pytest.approx(full * (math.exp(0.5) - 1))


def test_costs_count_each_ranking_once():
    records = [record("kvp", "a", budget, cost=1.2, lost=1.0 + budget) for budget in (0.5, 0.25)]
    records.append(record("kvp", "b", 0.5, cost=1.8, lost=2.5))
    found = by_metric(summarise(records))
    (cost,) = found["cost"].cells
    assert (cost.budget, cost.documents) == (None, 2)
    assert cost.value == pytest.approx(1.5)
    lost = cells(found["lost"])
    assert lost["kvp", 0.5].value == pytest.approx(2.0)
    assert lost["kvp", 0.25].value == pytest.approx(1.25)
    assert found["lost"].full is None


def test_protocols_tasks_and_counts_are_kept_apart():
    records = [
        record("kvp", "a", exact_match=1.0),
        record("kvp", "a", protocol="inside", branch=0, exact_match=0.0),
        record("kvp", "a", protocol="inside", branch=1, exact_match=1.0),
        record("kvp", "a", task="vt", exact_match=0.0),
        record("kvp", "a", budget=1, exact_match=0.0),
        record("kvp", "a", budget=1.0, exact_match=1.0),
    ]
    found = {(s.task, s.protocol): s for s in summarise(records)}
    assert len(found) == 3
    assert found["needles", "inside"].cells[0].value == 0.5
    # Two questions, one document.
    assert found["needles", "inside"].cells[0].documents == 1
    assert [c.value for c in found["needles", "after"].cells] == [1.0, 0.0, 1.0]


def test_tables_show_the_figures():
    summaries = summarise(proportion_records())
    rows = grid(summaries[0])
    assert rows[0] == [["method"], ["25% kept"]]
    low, high = wilson_interval(6, 10)
    assert rows[1] == [["kvp"], [f"0.60 [{low:.2f}, {high:.2f}]", "75% of whole, n=10"]]
    assert rows[2][1][1] == "25% of whole, n=10"
    assert rows[2][1][2].startswith("Δ -0.40 [-0.70, -0.10")
    page = markdown(summaries, "SmolLM2, dev")
    assert page.startswith("# SmolLM2, dev\n")
    assert "## needles: question after eviction: exact match\n" in page
    assert "whole cache 0.80" in page
    assert "| kvp | 0.60 [" in page
    assert "| snapkv | 2.10 [2.10, 2.10]<br>n=10<br>Δ +1.00 [+1.00, +1.00] |" in page
    parsed = json.loads(as_json(summaries))
    assert parsed[0]["cells"][1]["difference"] == pytest.approx(-0.4)
    assert parsed[0]["full"]["value"] == pytest.approx(0.8)
    table = rich_table(summaries[0])
    assert table.row_count == 2
    assert "question after eviction" in str(table.title)


def test_a_missing_figure_is_an_empty_cell():
    records = [record("kvp", "a", exact_match=1.0), record("snapkv", "a", 0.5, exact_match=1.0)]
    rows = grid(summarise(records)[0])
    assert rows[0] == [["method"], ["25% kept"], ["50% kept"]]
    assert rows[1][2] == [""]
    assert rows[2][1] == [""]


def test_curves_are_pictures(tmp_path):
    records = proportion_records()
    records += [record("kvp", str(i), 0.5, exact_match=0.7, kept=200, lost=1.0) for i in range(10)]
    records += [record("kvp", "a", protocol="inside", branch=0, exact_match=1.0)]
    summaries = summarise(records)
    assert [cell.kept for cell in curve(summaries[0], "kvp")] == [100, 200]
    paths = draw_curves(summaries, tmp_path)
    assert [path.name for path in paths] == [
        "curves-needles-after.png",
        "curves-needles-inside.png",
    ]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)


def test_records_survive_their_file(tmp_path):
    path = tmp_path / "deeper" / "records.jsonl"
    assert read_records(path) == []
    first, second = proportion_records()[:2]
    append_records(path, [first])
    append_records(path, [second])
    assert read_records(path) == [first, second]
    assert len(path.read_text().splitlines()) == 2


def test_a_cut_last_line_is_dropped(tmp_path):
    path = tmp_path / "records.jsonl"
    first, second, third = proportion_records()[:3]
    append_records(path, [first, second])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.warns(UserWarning, match=r"records.jsonl: the last line was cut short"):
        assert read_records(path) == [first]
    append_records(path, [third])
    assert read_records(path) == [first, third]


@pytest.mark.parametrize("line", ["{", "[]", '{"model": "m"}', "null"])
def test_a_malformed_line_is_named(tmp_path, line):
    path = tmp_path / "records.jsonl"
    append_records(path, proportion_records()[:1])
    before = path.read_text()
    path.write_text(before + line + "\n" + before)
    with pytest.raises(ValueError, match=r"records.jsonl, line 2: not a record"):
        read_records(path)
    assert path.read_text() == before + line + "\n" + before


def test_a_record_answers_for_its_key_only():
    one = record("kvp", "a", exact_match=1.0)
    changes = {
        "model": "other",
        "task": "other",
        "document": "b",
        "protocol": "inside",
        "branch": 1,
        "method": "snapkv",
        "fingerprint": "f",
        "allocator": "pyramid",
        "budget": 1,
        "sinks": 0,
        "recent": 0,
    }
    for name, value in changes.items():
        arguments = {"method": "kvp", "document": "a", name: value}
        other = record(**arguments, exact_match=1.0)
        assert other.key != one.key
        assert chosen([one, other], [one.key]) == [one]
    assert record("kvp", "a", budget=1).key != record("kvp", "a", budget=1.0).key
    assert record("kvp", "a", exact_match=0.0).key == one.key
