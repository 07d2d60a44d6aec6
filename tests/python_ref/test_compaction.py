"""Compaction moves entries bit for bit and leaves everything else alone."""

import pytest
import torch

from python_ref.compaction import compact_, survivor_order
from python_ref.selection import Selection, select

L, B, H, T, DK, DV = 2, 2, 3, 11, 4, 6


def cache(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    k = torch.randn(L, B, H, T, DK, generator=g).to(dtype)
    v = torch.randn(L, B, H, T, DV, generator=g).to(dtype)
    scores = torch.randn(L, B, H, T, generator=g)
    pos = 100 + torch.arange(T).expand(L, B, H, T).clone()
    return k, v, pos, scores


def test_survivor_order_by_hand():
    kept = torch.tensor([0, 3, 4, 7, 9])
    assert survivor_order(kept).tolist() == [0, 3, 4, 7, 9]
    # Slots 0, 3 and 4 stay; holes 1 and 2 take 7 and 9.
    assert survivor_order(kept, "any").tolist() == [0, 7, 9, 3, 4]
    with pytest.raises(ValueError, match="order: got 'fast'"):
        survivor_order(kept, "fast")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("order", ["stable", "any"])
@pytest.mark.parametrize("mode", ["per_head", "union", "model"])
def test_rows_hold_their_survivors(mode, order, dtype):
    k, v, pos, scores = cache(dtype)
    old = [x.clone() for x in (k, v, pos, scores)]
    budget = 40 if mode == "model" else 5
    selection = select(scores, budget, pos=pos, sinks=1, recent=2, mode=mode)
    done = compact_(k, v, pos, scores, selection, order)
    assert done.evicted
    for row in torch.cartesian_prod(torch.arange(L), torch.arange(B), torch.arange(H)).tolist():
        row = tuple(row)
        n = int(done.lengths[row])
        source = done.kept[row][:n].long()
        assert sorted(source.tolist()) == selection.kept[row][:n].tolist()
        for new, before in zip((k, v, pos, scores), old, strict=True):
            assert torch.equal(new[row][:n], before[row][source])
        assert torch.equal(done.pos[row][:n], old[2][row][source])
        assert (done.pos[row][n:] == -1).all()
        assert (done.kept[row][n:] == -1).all()
        for new, before in zip((k, v), old[:2], strict=True):
            assert torch.equal(new[row][n:], before[row][n:])
        if n < T:
            assert (pos[row][n:] == -1).all()
            assert scores[row][n:].isnan().all()
        if order == "any":
            moved = source != torch.arange(n)
            assert int(moved.sum()) == int((source >= n).sum())


@pytest.mark.parametrize("pos_shape", ["T", "BT"])
def test_shared_positions_are_read_only(pos_shape):
    k, v, pos, scores = cache()
    shared = pos[0, 0, 0].clone() if pos_shape == "T" else pos[0, :, 0].clone()
    shared = shared.int()
    before = shared.clone()
    selection = select(scores, 4, pos=shared, sinks=1, recent=1)
    done = compact_(k, v, shared, None, selection)
    assert torch.equal(shared, before)
    assert done.pos.dtype == torch.int32
    assert torch.equal(done.pos, selection.kept + 100)


def test_a_row_that_keeps_everything_is_untouched():
    k, v, pos, scores = cache()
    old = [x.clone() for x in (k, v, pos, scores)]
    budget = torch.full((L, H), T)
    budget[1, 2] = 3
    selection = select(scores, budget, pos=pos, sinks=1, recent=1)
    assert compact_(k, v, pos, scores, selection).evicted
    for new, before in zip((k, v, pos, scores), old, strict=True):
        assert torch.equal(new[0], before[0])
        assert torch.equal(new[1, :, :2], before[1, :, :2])
        assert not torch.equal(new[1, :, 2], before[1, :, 2])


def test_no_op_is_told_from_an_eviction():
    k, v, pos, scores = cache()
    lengths = torch.tensor([7, 11])
    for budget, evicted in [(11, False), (50, False), (10, True)]:
        selection = select(scores, budget, pos=pos, lengths=lengths)
        done = compact_(k.clone(), v.clone(), pos.clone(), None, selection, lengths=lengths)
        assert done.evicted is evicted
        assert done.lengths[:, 0].eq(7).all()
        assert done.lengths[:, 1].eq(min(budget, 11)).all()


def test_closing_holes_without_eviction_counts_as_a_change():
    k, v, pos, scores = cache()
    pos[..., 0] = -1
    old = k.clone()
    done = compact_(k, v, pos, scores, select(scores, T, pos=pos))
    assert done.evicted
    assert torch.equal(k[..., : T - 1, :], old[..., 1:, :])


def test_dropping_the_tail_moves_nothing_but_is_an_eviction():
    k, v, pos, _ = cache()
    old = k.clone()
    scores = -torch.arange(T).float().expand(L, B, H, T).clone()
    done = compact_(k, v, pos, scores, select(scores, 4, pos=pos, sinks=0, recent=0))
    assert done.evicted
    assert torch.equal(k, old)
    assert scores[..., 4:].isnan().all()
    assert scores[..., :4].isfinite().all()


def test_layers_may_differ_in_slots_and_be_absent():
    k, v, pos, scores = cache()
    short = 6
    pos[0, ..., short:] = -1
    k_list = [k[0, ..., :short, :].clone(), k[1].clone()]
    v_list = [v[0, ..., :short, :].clone(), v[1].clone()]
    selection = select(scores, 3, pos=pos, sinks=1, recent=1)
    assert int(selection.kept[0].max()) < short
    kept = selection.kept.long()
    done = compact_(k_list, v_list, pos, scores, selection)
    for layer in range(L):
        expected = torch.take_along_dim(k[layer], kept[layer][..., None], dim=2)
        assert torch.equal(k_list[layer][..., :3, :], expected)
    assert torch.equal(done.pos.long(), kept + 100)

    k, v, pos, scores = cache()
    pos[0] = -1
    old = k[0].clone()
    done = compact_([None, k[1]], [None, v[1]], pos, None, select(scores, 3, pos=pos))
    assert torch.equal(k[0], old)
    assert done.lengths[0].eq(0).all()
    assert done.pos[0].eq(-1).all()
    assert done.lengths[1].eq(3).all()


def test_positions_as_a_list():
    k, v, pos, scores = cache()
    selection = select(scores, 3, pos=pos)
    rows = [pos[0].clone(), pos[1].clone()]
    expected = pos.clone()
    compact_(k.clone(), v.clone(), expected, None, selection)
    done = compact_(k, v, rows, None, selection)
    assert torch.equal(torch.stack(rows), expected)
    assert torch.equal(done.pos, expected[..., :3])


def test_strided_caches():
    k, v, pos, scores = cache()
    selection = select(scores, 5, pos=pos)
    strided = k.transpose(2, 3).contiguous().transpose(2, 3)
    compact_(strided, v.clone(), pos.clone(), None, selection)
    compact_(k, v, pos, None, selection)
    assert torch.equal(strided, k)


def test_repeated_eviction_keeps_original_entries():
    g = torch.Generator().manual_seed(0)
    cap, budget, step = 24, 12, 6
    k = torch.zeros(1, 1, 2, cap, 2)
    pos = torch.full((1, 1, 2, cap), -1)
    scores = torch.full((1, 1, 2, cap), torch.nan)
    original = torch.randn(2, 1000, 2, generator=g)
    filled, next_pos = 0, 0
    for _ in range(100):
        for _ in range(step):
            k[0, 0, :, filled] = original[:, next_pos]
            pos[..., filled] = next_pos
            scores[..., filled] = torch.randn(1, 1, 2, generator=g)
            filled, next_pos = filled + 1, next_pos + 1
        lengths = torch.tensor([filled])
        selection = select(scores, budget, pos=pos, lengths=lengths, sinks=2, recent=3)
        done = compact_(k, k.clone(), pos, scores, selection, lengths=lengths)
        filled = int(done.lengths[0, 0, 0])
        for h in range(2):
            live = pos[0, 0, h, :filled]
            assert live.tolist() == sorted(set(live.tolist()))
            assert live[:2].tolist() == [0, 1]
            assert int(live[-1]) == next_pos - 1
            assert torch.equal(k[0, 0, h, :filled], original[h, live])
    assert next_pos == 600


def test_selection_is_not_changed():
    k, v, pos, scores = cache()
    selection = select(scores, 5, pos=pos)
    before = Selection(selection.kept.clone(), selection.lengths.clone())
    compact_(k, v, pos, scores, selection, "any")
    assert torch.equal(before.kept, selection.kept)
    assert torch.equal(before.lengths, selection.lengths)
