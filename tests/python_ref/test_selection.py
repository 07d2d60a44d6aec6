"""Selection against a definition written another way: Python sorting with explicit keys."""

import itertools
import math

import pytest
import torch

from python_ref.selection import Selection, ranking, ranks, select, valid_entries

NAN, INF = math.nan, math.inf


def sort_key(score, *place):
    """Ascending key of the documented order: number before NaN, high before low, low place."""
    return (math.isnan(score), 0.0 if math.isnan(score) else -score, *place)


def naive_valid(pos, length):
    slots = [t for t, p in enumerate(pos) if p >= 0]
    return slots if length is None else slots[: max(length, 0)]


def naive_pins(slots, budget, sinks, recent):
    if budget < sinks + recent:
        recent = max(0, budget - sinks)
        sinks = min(sinks, budget)
    return set(slots[:sinks]) | set(slots[max(0, len(slots) - recent) :])


def naive_per_head(scores, pos, length, budget, sinks, recent):
    slots = naive_valid(pos, length)
    budget = max(1, budget)
    kept = naive_pins(slots, budget, sinks, recent)
    rest = sorted((t for t in slots if t not in kept), key=lambda t: sort_key(scores[t], t))
    return sorted(kept | set(rest[: max(0, budget - len(kept))]))


def naive_union(head_scores, pos, length, budget, sinks, recent):
    slots = naive_valid(pos, length)
    budget = max(1, budget)
    pins = naive_pins(slots, budget, sinks, recent)
    priority = {}
    for scores in head_scores:
        order = sorted(slots, key=lambda t: (t not in pins, *sort_key(scores[t], t)))
        for rank, t in enumerate(order):
            priority[t] = min(priority.get(t, rank), rank)
    return sorted(sorted(slots, key=lambda t: (priority[t], t))[:budget])


def naive_model(scores, pos, lengths, total, sinks, recent):
    """scores, pos, lengths: {(layer, head): row}. Returns {(layer, head): kept}."""
    slots = {row: naive_valid(pos[row], lengths[row]) for row in scores}
    filled = [row for row in scores if slots[row]]
    kept = {row: set() for row in scores}
    for row in filled:
        kept[row] = naive_pins(slots[row], total // len(filled), sinks, recent)
        if not kept[row]:
            kept[row] = {min(slots[row], key=lambda t: sort_key(scores[row][t], t))}
    rest = [(*row, t) for row in filled for t in slots[row] if t not in kept[row]]
    rest.sort(key=lambda e: sort_key(scores[e[0], e[1]][e[2]], *e))
    for layer, head, t in rest[: total - sum(map(len, kept.values()))]:
        kept[layer, head].add(t)
    return {row: sorted(k) for row, k in kept.items()}


def rows_of(selection: Selection):
    layers, batch, heads, _ = selection.kept.shape
    for row in itertools.product(range(layers), range(batch), range(heads)):
        n = int(selection.lengths[row])
        assert (selection.kept[row][n:] == -1).all()
        yield row, selection.kept[row][:n].tolist()


SCORES = {
    "normal": lambda g, shape: torch.randn(shape, generator=g),
    "crowded": lambda g, shape: torch.randint(0, 3, shape, generator=g).float(),
    "equal": lambda g, shape: torch.zeros(shape),
    "all -inf": lambda g, shape: torch.full(shape, -INF),
    "all nan": lambda g, shape: torch.full(shape, NAN),
    "adversarial": lambda g, shape: torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0])[
        torch.randint(0, 7, shape, generator=g)
    ],
}
PADDING = ["none", "left", "right", "holes", "lengths", "empty"]


def inputs(kind, padding, seed=0, layers=2, batch=2, heads=3, slots=13):
    g = torch.Generator().manual_seed(seed)
    scores = SCORES[kind](g, (layers, batch, heads, slots))
    pos = torch.arange(slots).expand(layers, batch, heads, slots).clone()
    lengths = None
    if padding == "left":
        pos[:, 1] -= 5
    elif padding == "right":
        pos[:, 1, :, 8:] = -1
    elif padding == "holes":
        pos[torch.rand(pos.shape, generator=g) < 0.3] = -1
    elif padding == "lengths":
        lengths = torch.randint(-1, slots + 3, (layers, batch, heads), generator=g)
    elif padding == "empty":
        pos[0, 0, 1] = -1
        pos[:, 1] = -1
    return scores, pos, lengths


PINS = [(0, 0), (2, 3), (20, 1), (1, 20)]


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("kind", SCORES)
def test_per_head(kind, padding):
    scores, pos, lengths = inputs(kind, padding)
    for (sinks, recent), budget in itertools.product(PINS, [0, 1, 4, 12, 40]):
        got = select(scores, budget, pos=pos, lengths=lengths, sinks=sinks, recent=recent)
        assert got.kept.shape[-1] == min(13, max(budget, 1))
        assert got.kept.dtype == got.lengths.dtype == torch.int32
        for row, kept in rows_of(got):
            length = None if lengths is None else int(lengths[row])
            expected = naive_per_head(
                scores[row].tolist(), pos[row].tolist(), length, budget, sinks, recent
            )
            assert kept == expected, (row, sinks, recent, budget)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("kind", SCORES)
def test_union(kind, padding):
    scores, pos, lengths = inputs(kind, padding)
    for (sinks, recent), budget in itertools.product(PINS, [0, 4, 7, 40]):
        got = select(
            scores, budget, pos=pos, lengths=lengths, sinks=sinks, recent=recent, mode="union"
        )
        kept = dict(rows_of(got))
        for layer, b in itertools.product(range(2), range(2)):
            expected = naive_union(
                scores[layer, b].tolist(),
                pos[layer, b, 0].tolist(),
                None if lengths is None else int(lengths[layer, b, 0]),
                budget,
                sinks,
                recent,
            )
            for h in range(3):
                assert kept[layer, b, h] == expected, (layer, b, h, sinks, recent, budget)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("kind", SCORES)
def test_model_total(kind, padding):
    scores, pos, lengths = inputs(kind, padding)
    for (sinks, recent), total in itertools.product(PINS, [6, 20, 41, 200]):
        got = select(
            scores, total, pos=pos, lengths=lengths, sinks=sinks, recent=recent, mode="model"
        )
        assert got.kept.shape == scores.shape
        kept = dict(rows_of(got))
        for b in range(2):
            grid = list(itertools.product(range(2), range(3)))
            expected = naive_model(
                {(i, h): scores[i, b, h].tolist() for i, h in grid},
                {(i, h): pos[i, b, h].tolist() for i, h in grid},
                {(i, h): None if lengths is None else int(lengths[i, b, h]) for i, h in grid},
                total,
                sinks,
                recent,
            )
            for (i, h), slots in expected.items():
                assert kept[i, b, h] == slots, (i, b, h, sinks, recent, total)


def test_model_total_per_sequence_and_its_floor():
    scores, pos, _ = inputs("normal", "none")
    got = select(scores, torch.tensor([6, 30]), pos=pos, mode="model", sinks=0, recent=0)
    assert got.lengths.sum(dim=(0, 2)).tolist() == [6, 30]
    assert (got.lengths >= 1).all()
    with pytest.raises(ValueError, match="total of 5 for sequence 1, expected at least 6"):
        select(scores, [6, 5], pos=pos, mode="model")


def test_model_total_of_an_empty_sequence_is_free():
    scores, pos, _ = inputs("normal", "none")
    got = select(scores, 0, pos=torch.full_like(pos, -1), mode="model")
    assert (got.lengths == 0).all()
    assert (got.kept == -1).all()


def test_ranking_order():
    scores = torch.tensor([NAN, 0.0, -INF, -0.0, INF, 1.0, NAN, 5.0, 9.0])
    valid = torch.tensor([1, 1, 1, 1, 1, 1, 1, 1, 0]).bool()
    pinned = torch.tensor([0, 0, 0, 0, 0, 0, 1, 0, 0]).bool()
    order = ranking(scores, valid, pinned)
    assert order.tolist() == [6, 4, 7, 5, 1, 3, 2, 0, 8]
    assert ranks(order)[order].tolist() == list(range(9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_dtype(dtype):
    scores, pos, _ = inputs("adversarial", "none")
    expected = select(scores, 5, pos=pos, sinks=1, recent=2)
    assert torch.equal(select(scores.to(dtype), 5, pos=pos, sinks=1, recent=2).kept, expected.kept)


def test_crowded_scores_are_not_truncated():
    n, k = 65_536, 20_000
    g = torch.Generator().manual_seed(0)
    scores = 1 + 0.245 * torch.rand(1, 1, 1, n, generator=g)
    got = select(scores, k, pos=torch.arange(n), sinks=0, recent=0)
    threshold = scores.flatten().sort(descending=True).values[k - 1]
    mask = torch.zeros(n, dtype=torch.bool)
    mask[got.kept.flatten().long()] = True
    assert mask.sum() == k
    assert mask[scores.flatten() > threshold].all()
    assert not mask[scores.flatten() < threshold].any()
    equal = select(torch.ones(1, 1, 1, n), k, pos=torch.arange(n), sinks=0, recent=0)
    assert equal.kept.flatten().tolist() == list(range(k))


def test_budget_tensors_apply_to_their_rows():
    scores, pos, _ = inputs("normal", "none")
    per_layer = select(scores, [2, 9], pos=pos, sinks=0, recent=0)
    assert per_layer.kept.shape[-1] == 13
    assert per_layer.lengths.tolist() == [[[2] * 3] * 2, [[9] * 3] * 2]
    per_head = torch.tensor([[1, 2, 3], [4, 5, 6]])
    got = select(scores, per_head, pos=pos, sinks=0, recent=0).lengths
    assert torch.equal(got[:, 0].long(), per_head)
    assert torch.equal(got[:, 1].long(), per_head)
    per_row = torch.arange(12).reshape(2, 2, 3)
    got = select(scores, per_row, pos=pos, sinks=0, recent=0).lengths
    assert torch.equal(got.long(), per_row.clamp(min=1))


def test_left_padding_keeps_what_the_unpadded_run_keeps():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 2, 2, 24, generator=g)
    pos = torch.arange(24).repeat(2, 1)
    pos[1] = (pos[1] - 8).clamp(min=-1)
    got = select(scores, 12, pos=pos, lengths=torch.tensor([24, 16]), sinks=2, recent=3)
    alone = select(scores[:, 1:, :, 8:], 12, pos=torch.arange(16), sinks=2, recent=3)
    assert torch.equal(got.kept[:, 1], alone.kept[:, 0] + 8)


def test_static_cache_keeps_only_real_tokens():
    pos = torch.full((64,), -1)
    pos[:16] = torch.arange(16)
    scores = torch.zeros(1, 1, 1, 64)
    scores[..., :16] = -5.0
    got = select(scores, 8, pos=pos, sinks=0, recent=0)
    assert got.kept.flatten().tolist() == list(range(8))
    by_length = select(scores, 8, pos=torch.arange(64), lengths=16, sinks=0, recent=0)
    assert torch.equal(got.kept, by_length.kept)


@pytest.mark.parametrize("mode", ["per_head", "union", "model"])
def test_no_slots(mode):
    got = select(torch.empty(1, 2, 2, 0), 4, pos=torch.empty(0, dtype=torch.long), mode=mode)
    assert got.kept.shape == (1, 2, 2, 0)
    assert (got.lengths == 0).all()


def test_valid_entries_counts_only_valid_ones():
    pos = torch.tensor([-1, 0, -1, 1, 2, 3]).expand(1, 2, 1, 6)
    valid = valid_entries(pos, torch.tensor([2, -1]))
    assert valid[0, 0, 0].tolist() == [False, True, False, True, False, False]
    assert not valid[0, 1].any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"budget": -1}, ValueError, "budget: got -1, expected at least 0"),
        ({"budget": True}, TypeError, "budget: got True, expected an integer"),
        ({"budget": 2.0}, TypeError, "budget: got 2.0, expected integers"),
        ({"budget": [1, 2, 3]}, ValueError, r"budget: got shape \[3\]"),
        ({"sinks": -1}, ValueError, "sinks: got -1"),
        ({"recent": -2}, ValueError, "recent: got -2"),
        ({"mode": "heads"}, ValueError, "mode: got 'heads'"),
        ({"pos": torch.arange(12)}, ValueError, r"pos: got shape \(12,\)"),
        ({"lengths": torch.tensor([1, 2, 3])}, ValueError, r"lengths: got shape \[3\]"),
        ({"scores": torch.zeros(2, 13)}, ValueError, r"scores: got torch.float32 of shape"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"scores": torch.zeros(2, 2, 3, 13), "budget": 4, "pos": torch.arange(13), **change}
    with pytest.raises(error, match=message):
        select(arguments.pop("scores"), arguments.pop("budget"), **arguments)
