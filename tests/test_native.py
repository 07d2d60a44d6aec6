"""kvp_ext._C itself: exact selection, in-place compaction and refusals, on small inputs.

The oracle here is a plain Python loop over Python lists, independent of python_ref.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from simt import needs_simt

import kvp_ext
from kvp_ext import _C

NAN = float("nan")
INF = float("inf")
DEVICES = [
    pytest.param(_C.CPU, id="cpu"),
    pytest.param(_C.SIMT, id="simt", marks=needs_simt),
]


def view(tensor, shared=()):
    """(data, strides…) of a [B, H, T, (D)] tensor; the dimensions in `shared` get stride 0."""
    if tensor is None:
        return [0] * 5
    strides = [0 if d in shared else tensor.stride(d) for d in range(3)]
    return [tensor.data_ptr(), *strides, tensor.stride(3) if tensor.dim() == 4 else 1]


def counts(value):
    if isinstance(value, int):
        return (0, 0, 0, 0, value)
    assert value.dtype == torch.int32
    return (value.data_ptr(), *value.stride(), 0)


def make_args(
    op,
    layers,
    *,
    device=_C.CPU,
    budget=0,
    lengths=-1,
    mode=_C.PER_HEAD,
    order=_C.STABLE,
    sinks=0,
    recent=0,
    capacity=None,
    threads=2,
    kept=None,
    new_lengths=None,
    workspace=True,
):
    """Args over `layers`, dicts of k, v [B,H,T,D], pos, scores [B,H,T]; and its result tensors."""
    first = next(layer for layer in layers if layer)
    some = first.get("scores") if first.get("k") is None else first["k"]
    batch, heads = some.shape[:2]
    capacity = some.shape[2] if capacity is None else capacity
    shape = (len(layers), batch, heads)
    a = _C.Args()
    a.device, a.threads, a.n_batch, a.n_heads = device, threads, batch, heads
    a.dtype = {torch.float32: _C.FLOAT32, torch.float16: _C.FLOAT16, torch.bfloat16: _C.BFLOAT16}[
        first["k"].dtype if first.get("k") is not None else torch.float32
    ]
    a.head_dim_k = first["k"].shape[3] if first.get("k") is not None else 1
    a.head_dim_v = first["v"].shape[3] if first.get("v") is not None else 1
    pos = first.get("pos")
    a.pos_dtype = _C.INT32 if pos is not None and pos.dtype == torch.int32 else _C.INT64
    flat = []
    for layer in layers:
        tensors = [layer.get(name) for name in ("k", "v", "pos", "scores")]
        present = [t for t in tensors if t is not None]
        flat.append(present[0].shape[2] if present else 0)
        for t in tensors:
            flat += view(t)
    a.set_layers(flat)
    a.mode, a.order, a.sinks, a.recent, a.capacity = mode, order, sinks, recent, capacity
    a.lengths, a.budget = counts(lengths), counts(budget)
    out = SimpleNamespace(
        lengths=torch.full(shape, -7, dtype=torch.int32) if new_lengths is None else new_lengths,
        kept=torch.full((*shape, capacity), -7, dtype=torch.int32) if kept is None else kept,
        pos=torch.full((*shape, capacity), -7, dtype=torch.int64 if pos is None else pos.dtype),
        changed=torch.full((1,), -7, dtype=torch.int32),
        keep_alive=(layers, budget, lengths),
    )
    a.new_lengths, a.kept = out.lengths.data_ptr(), out.kept.data_ptr()
    a.new_pos = out.pos.data_ptr() if pos is not None else 0
    a.changed = out.changed.data_ptr()
    if workspace:
        out.workspace = torch.empty(_C.workspace_bytes(op, a), dtype=torch.uint8)
        a.workspace, a.workspace_bytes = out.workspace.data_ptr(), out.workspace.numel()
    return a, out


# ---- the oracle -----------------------------------------------------------------------------


def valid_slots(pos, length):
    slots = [t for t, p in enumerate(pos) if p >= 0]
    return slots if length < 0 else slots[:length]


def ranking(slots, scores, sinks, recent, budget):
    """Slots by rank, best first."""
    sinks = min(sinks, budget)
    recent = min(recent, budget - sinks)
    pinned = set(slots[:sinks]) | set(slots[len(slots) - recent :])

    def key(t):
        if t in pinned:
            return (0, 0.0, t)
        s = scores[t]
        return (2, 0.0, t) if math.isnan(s) else (1, -s, t)

    return sorted(slots, key=key), pinned


def select_rows(mode, scores, pos, lengths, budget, sinks, recent):
    """{(l, b, h): ascending slots} for scores and pos [L][B][H][T], int budget and lengths."""
    n_layers, batch, heads = len(scores), len(scores[0]), len(scores[0][0])
    valid = {
        (l, b, h): valid_slots(pos[l][b][h], lengths)
        for l in range(n_layers)
        for b in range(batch)
        for h in range(heads)
    }
    kept = {}
    if mode == _C.PER_HEAD:
        for (l, b, h), slots in valid.items():
            n = min(max(budget, 1), len(slots))
            kept[l, b, h] = sorted(ranking(slots, scores[l][b][h], sinks, recent, n)[0][:n])
    elif mode == _C.UNION:
        for l in range(n_layers):
            for b in range(batch):
                slots = valid[l, b, 0]
                n = min(max(budget, 1), len(slots))
                best = dict.fromkeys(slots, len(slots))
                for h in range(heads):
                    for r, t in enumerate(ranking(slots, scores[l][b][h], sinks, recent, n)[0]):
                        best[t] = min(best[t], r)
                union = sorted(sorted(slots, key=lambda t: (best[t], t))[:n])
                kept.update({(l, b, h): union for h in range(heads)})
    else:
        for b in range(batch):
            rows = [(l, b, h) for l in range(n_layers) for h in range(heads)]
            holding = [row for row in rows if valid[row]]
            if budget >= sum(len(valid[row]) for row in rows):
                kept.update({row: valid[row] for row in rows})
                continue
            pool, chosen = [], []
            for row in holding:
                l, _, h = row
                order, pinned = ranking(
                    valid[row], scores[l][b][h], sinks, recent, budget // len(holding)
                )
                pinned = pinned or set(order[:1])
                chosen += [(row, t) for t in pinned]
                for t in order:
                    if t not in pinned:
                        s = scores[l][b][h][t]
                        nan = math.isnan(s)
                        pool.append(((nan, 0.0 if nan else -s, l, h, t), row, t))
            pool.sort()
            chosen += [(row, t) for _, row, t in pool[: budget - len(chosen)]]
            for row in rows:
                kept[row] = sorted(t for r, t in chosen if r == row)
    return kept


def in_order(ascending, order):
    if order == _C.STABLE:
        return ascending
    n = len(ascending)
    moved = iter(t for t in ascending if t >= n)
    staying = {t for t in ascending if t < n}
    return [i if i in staying else next(moved) for i in range(n)]


# ---- selection ------------------------------------------------------------------------------


def select_one(scores, budget, *, sinks=0, recent=0):
    """Kept slots of one row given its scores."""
    layer = {"scores": scores.view(1, 1, -1)}
    args, out = make_args(
        _C.OP_SELECT,
        [layer],
        budget=budget,
        sinks=sinks,
        recent=recent,
        capacity=min(max(budget, 1), scores.numel()),
    )
    _C.select(args)
    n = out.lengths.item()
    assert (out.kept.flatten()[n:] == -1).all()
    return out.kept.flatten()[:n].tolist()


def test_all_equal_keeps_the_lowest_slots():
    assert select_one(torch.full((1000,), 0.5), 137) == list(range(137))


def test_candidates_crowded_into_one_bin_are_not_truncated():
    scores = 1.0 + torch.rand(65536, generator=torch.Generator().manual_seed(0)) * 0.245
    kept = select_one(scores, 20_000)
    expected = torch.sort(scores, descending=True, stable=True).indices[:20_000].sort().values
    assert kept == expected.tolist()


def test_special_values_rank_as_documented():
    denormal = 1e-42
    scores = torch.tensor(
        [NAN, -INF, -0.0, 0.0, -denormal, denormal, INF, -1.0, 3.4e38, -NAN, -3.4e38]
    )
    best_first = [6, 8, 5, 2, 3, 4, 7, 10, 1, 0, 9]
    for k in range(1, len(best_first) + 1):
        assert select_one(scores, k) == sorted(best_first[:k]), k


@pytest.mark.parametrize(
    ("budget", "kept"), [(0, [3]), (1, [3]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_extreme_budgets(budget, kept):
    assert select_one(torch.tensor([1.0, 2.0, 0.0, 9.0, 3.0]), budget) == kept


@pytest.mark.parametrize("score", [0.0, -INF, NAN, INF])
def test_pins_survive_saturated_scores_and_shrink_recent_first(score):
    scores = torch.full((50,), score)
    assert select_one(scores, 10, sinks=4, recent=6) == [0, 1, 2, 3, *range(44, 50)]
    assert select_one(scores, 5, sinks=4, recent=6) == [0, 1, 2, 3, 49]
    assert select_one(scores, 3, sinks=4, recent=6) == [0, 1, 2]
    assert select_one(scores, 12, sinks=4, recent=6) == [*range(6), *range(44, 50)]


def random_cache(generator, n_layers, batch, heads, slots, dim, dtype, pos_dtype=torch.int64):
    """Layers with distinguishable entries, padding before, between and after them."""
    layers = []
    for _ in range(n_layers):
        pos = torch.arange(slots, dtype=pos_dtype).expand(batch, heads, slots).clone()
        pos[torch.rand(pos.shape, generator=generator) < 0.2] = -1
        scores = torch.randint(-3, 4, (batch, heads, slots), generator=generator).float()
        scores[torch.rand(scores.shape, generator=generator) < 0.1] = NAN
        layers.append(
            {
                "k": torch.randn(batch, heads, slots, dim, generator=generator).to(dtype),
                "v": torch.randn(batch, heads, slots, dim + 3, generator=generator).to(dtype),
                "pos": pos,
                "scores": scores,
            }
        )
    return layers


@pytest.mark.parametrize("order", [_C.STABLE, _C.ANY])
@pytest.mark.parametrize("mode", [_C.PER_HEAD, _C.UNION, _C.MODEL])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("device", DEVICES)
def test_evict_by_given_scores_matches_the_oracle(device, mode, order, seed):
    g = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high, (), generator=g))  # noqa: E731
    n_layers, batch, heads, slots = draw(1, 4), draw(1, 3), draw(1, 4), draw(1, 40)
    dtype = [torch.float32, torch.bfloat16, torch.float16][seed % 3]
    pos_dtype = [torch.int64, torch.int32][seed % 2]
    layers = random_cache(g, n_layers, batch, heads, slots, draw(1, 20), dtype, pos_dtype)
    if mode == _C.UNION:
        for layer in layers:
            layer["pos"] = layer["pos"][:, :1].expand(-1, heads, -1).clone()
    budget = draw(n_layers * heads, n_layers * heads * slots) if mode == _C.MODEL else draw(0, 44)
    sinks, recent, lengths = draw(0, 5), draw(0, 5), draw(-1, slots + 1)
    before = [{name: t.clone() for name, t in layer.items()} for layer in layers]
    stacked = {name: [layer[name].tolist() for layer in layers] for name in ("scores", "pos")}
    expected = select_rows(mode, stacked["scores"], stacked["pos"], lengths, budget, sinks, recent)
    args, out = make_args(
        _C.OP_EVICT,
        layers,
        device=device,
        budget=budget,
        lengths=lengths,
        mode=mode,
        order=order,
        sinks=sinks,
        recent=recent,
    )
    _C.evict(args)

    changed = False
    for (l, b, h), ascending in expected.items():
        kept = in_order(ascending, order)
        n = len(kept)
        old, new = before[l], layers[l]
        assert out.lengths[l, b, h] == n
        assert out.kept[l, b, h].tolist() == kept + [-1] * (slots - n)
        assert out.pos[l, b, h].tolist() == [int(old["pos"][b, h, t]) for t in kept] + [-1] * (
            slots - n
        )
        for name in ("k", "v", "pos"):
            assert torch.equal(new[name][b, h, :n], old[name][b, h, kept]), name
        row_changed = ascending != valid_slots(old["pos"][b, h].tolist(), lengths)
        row_changed |= ascending != list(range(n))
        changed |= row_changed
        if row_changed:
            survivors = new["scores"][b, h, :n].nan_to_num(nan=99.0)
            assert torch.equal(survivors, old["scores"][b, h, kept].nan_to_num(nan=99.0))
            assert new["scores"][b, h, n:].isnan().all()
        else:
            for name in ("k", "v", "pos", "scores"):
                same = torch.equal(
                    new[name][b, h].nan_to_num(nan=99.0), old[name][b, h].nan_to_num(nan=99.0)
                )
                assert same, name
    assert out.changed.item() == changed


@pytest.mark.parametrize("order", [_C.STABLE, _C.ANY])
@pytest.mark.parametrize("device", DEVICES)
def test_select_then_compact_equals_evict(device, order):
    def cache():
        return random_cache(torch.Generator().manual_seed(5), 2, 2, 3, 33, 8, torch.float32)

    together, apart = cache(), cache()
    options = {"device": device, "order": order, "sinks": 2, "recent": 3, "budget": 11}
    args, evicted = make_args(_C.OP_EVICT, together, **options)
    _C.evict(args)
    args, selected = make_args(_C.OP_SELECT, apart, **options)
    _C.select(args)
    args, compacted = make_args(
        _C.OP_COMPACT, apart, device=device,
        kept=selected.kept, new_lengths=selected.lengths, order=order,
    )  # fmt: skip
    _C.compact(args)
    assert torch.equal(selected.kept, evicted.kept)
    assert torch.equal(compacted.pos, evicted.pos)
    assert compacted.changed.item() == 1
    for a, b in zip(together, apart, strict=True):
        for name in a:
            assert torch.equal(a[name].nan_to_num(nan=9.0), b[name].nan_to_num(nan=9.0)), name


@pytest.mark.parametrize("device", DEVICES)
def test_interleaved_kv_storage_and_absent_layers(device):
    storage = torch.randn(2, 3, 20, 2, 2, 8)  # batch, layer, slot, K or V, head, channel
    original = storage.clone()
    scores = torch.randn(3, 2, 2, 20)
    pos = torch.arange(20).expand(2, 2, 20).contiguous()
    layers = [
        {
            "k": storage[:, l, :, 0].transpose(1, 2),
            "v": storage[:, l, :, 1].transpose(1, 2),
            "pos": pos.clone(),
            "scores": scores[l].clone(),
        }
        for l in range(3)
    ]
    layers[1] = {}
    args, out = make_args(_C.OP_EVICT, layers, device=device, budget=7)
    _C.evict(args)
    assert torch.equal(storage[:, 1], original[:, 1])
    assert (out.lengths[1] == 0).all()
    assert (out.kept[1] == -1).all()
    for l in (0, 2):
        expected = scores[l].topk(7, dim=-1).indices.sort().values
        assert torch.equal(out.kept[l, ..., :7].long(), expected)
        for b in range(2):
            for h in range(2):
                keep = expected[b, h]
                assert torch.equal(storage[b, l, :7, :, h], original[b, l, keep, :, h])


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_any_number_of_threads_gives_the_same_result(threads):
    results = []
    for n in (1, threads):
        layers = random_cache(torch.Generator().manual_seed(3), 4, 2, 3, 50, 4, torch.float32)
        args, out = make_args(_C.OP_EVICT, layers, budget=9, threads=n)
        _C.evict(args)
        results.append((out.kept, *(layer["k"] for layer in layers)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_offsets_beyond_32_bits(device):
    # 2**31 elements lie between the heads; only the pages that are used become memory.
    slots, dim, distance = 8, 4, 2**31 + 64
    storage = torch.empty(distance + 2 * slots * dim, dtype=torch.float16)
    shape, strides = (1, 2, slots, dim), (2 * distance, distance, dim, 1)
    k = storage.as_strided(shape, strides)
    v = storage.as_strided(shape, strides, slots * dim)
    entries = torch.arange(2 * slots * dim, dtype=torch.float16).view(2, slots, dim)
    k[0], v[0] = entries, -entries
    scores = torch.tensor([0.0, 1, 0, 1, 0, 1, 0, 1]).expand(1, 2, 8).clone()
    layer = {"k": k, "v": v, "pos": torch.arange(8).expand(1, 2, 8).clone(), "scores": scores}
    args, _ = make_args(_C.OP_EVICT, [layer], device=device, budget=4)
    _C.evict(args)
    assert torch.equal(k[0, :, :4], entries[:, 1::2])
    assert torch.equal(v[0, :, :4], -entries[:, 1::2])


# ---- refusals -------------------------------------------------------------------------------


def small_layers(n_layers=2, batch=1, heads=2, slots=6, dim=4):
    g = torch.Generator().manual_seed(1)
    layers = random_cache(g, n_layers, batch, heads, slots, dim, torch.float32)
    for layer in layers:
        layer["pos"] = torch.arange(slots).expand(batch, heads, slots).clone()
    return layers


def refuse(message, layers=None, op=_C.OP_EVICT, change=None, **options):
    """The operation raises `message` and leaves every tensor as it was."""
    layers = small_layers() if layers is None else layers
    options.setdefault("budget", 3)
    before = [{n: t.clone() for n, t in layer.items() if t is not None} for layer in layers]
    with pytest.raises(ValueError, match=message):  # noqa: PT012
        args, out = make_args(op, layers, workspace=False, **options)
        out.workspace = torch.empty(1 << 20, dtype=torch.uint8)
        args.workspace, args.workspace_bytes = out.workspace.data_ptr(), 1 << 20
        if change:
            change(args)
        {_C.OP_EVICT: _C.evict, _C.OP_SELECT: _C.select, _C.OP_COMPACT: _C.compact}[op](args)
    for old, layer in zip(before, layers, strict=True):
        for name, tensor in old.items():
            assert torch.equal(tensor.nan_to_num(), layer[name].nan_to_num()), name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("threads", 0, r"threads is 0, expected >= 1"),
        ("dtype", 9, r"dtype is 9, expected KVP_FLOAT32"),
        ("pos_dtype", 0, r"pos_dtype is 0, expected KVP_INT32"),
        ("mode", 3, r"mode is 3, expected KVP_PER_HEAD"),
        ("order", -1, r"order is -1, expected KVP_STABLE"),
        ("sinks", -2, r"sinks is -2, expected >= 0"),
        ("recent", -1, r"recent is -1, expected >= 0"),
        ("n_heads", -1, r"n_heads is -1, expected >= 0"),
        ("new_lengths", 0, r"new_lengths is NULL"),
        ("workspace", 0, r"workspace is NULL, expected \d+ bytes"),
        ("workspace_bytes", 8, r"workspace_bytes is 8, expected >= \d+"),
        ("capacity", 2, r"capacity is 2, expected >= 3: what \[layer 0, batch 0, head 0\]"),
        ("device", 4, r"device is 4, expected KVP_CPU"),
    ],
)
def test_scalar_out_of_range(field, value, message):
    refuse(message, change=lambda args: setattr(args, field, value))


def test_negative_budget_names_its_place():
    budget = torch.full((2, 1, 2), 3, dtype=torch.int32)
    budget[1, 0, 1] = -2
    refuse(r"budget\[layer 1, batch 0, head 1\] is -2, expected >= 0", budget=budget)
    refuse(r"budget\[layer 1, batch 0\] is -2", budget=budget.flip(2), mode=_C.UNION)
    refuse(r"budget is -1, expected >= 0", budget=-1)


def test_length_beyond_slots_names_its_place():
    lengths = torch.full((2, 1, 2), 6, dtype=torch.int32)
    lengths[1, 0, 0] = 7
    message = r"lengths\[layer 1, batch 0, head 0\] is 7, expected <= 6 slots"
    refuse(message, lengths=lengths)


def test_model_total_below_one_per_row():
    message = r"budget\[batch 0\] is 3 in model mode, expected >= 4"
    refuse(message, budget=3, mode=_C.MODEL)


def replace(name, make):
    layers = small_layers()
    layers[1][name] = make(layers)
    return layers


def test_expanded_memory():
    one = torch.zeros(1, 1, 6, 4)
    message = r"k_cache\[layer 1\] has stride 0 over its 2 head entries \(expanded memory\)"
    refuse(message, replace("k", lambda _: one.expand(1, 2, 6, 4)))
    message = r"scores\[layer 1\] has stride 0 over its 6 slot entries"
    refuse(message, replace("scores", lambda _: torch.zeros(1, 2, 1).expand(1, 2, 6)))


def test_self_overlap():
    windows = torch.zeros(100).as_strided((1, 2, 6, 4), (60, 30, 3, 1))
    refuse(r"v_cache\[layer 1\] overlaps itself", replace("v", lambda _: windows[..., :4]))


def test_aliasing():
    refuse(r"v_cache\[layer 1\] overlaps k_cache\[layer 1\]", [*small_layers(1), alias_layer()])
    refuse(
        r"k_cache\[layer 1\] overlaps k_cache\[layer 0\]",
        replace("k", lambda layers: layers[0]["k"]),
    )
    refuse(r"pos\[layer 1\] overlaps pos", replace("pos", lambda layers: layers[0]["pos"]))
    shifted = torch.zeros(2 * 6 * 4 + 4)
    layers = small_layers()
    layers[0]["k"] = shifted[: 2 * 6 * 4].view(1, 2, 6, 4)
    layers[1]["v"] = shifted[4:].view(1, 2, 6, 4)
    layers[0]["v"], layers[1]["k"] = (torch.zeros(1, 2, 6, 4) for _ in range(2))
    refuse(r"v_cache\[layer 1\] overlaps k_cache\[layer 0\]", layers)


def alias_layer():
    (layer,) = small_layers(1, dim=4)
    memory = torch.zeros(1, 2, 6, 7)
    layer["k"], layer["v"] = memory[..., :4], memory[..., 3 - 3 :]
    return layer


def test_outputs_and_workspace_must_not_overlap_the_cache():
    layers = small_layers()
    k = layers[1]["k"]
    message = r"(k_cache\[layer 1\] overlaps new_lengths)|(new_lengths overlaps k_cache\[layer 1\])"
    refuse(message, layers, change=lambda a: setattr(a, "new_lengths", k.data_ptr() + 16))


def test_strides():
    transposed = torch.zeros(1, 2, 4, 6).transpose(2, 3)
    message = r"k_cache\[layer 1\] has channel stride 6, expected 1"
    refuse(message, replace("k", lambda _: transposed))


def test_misaligned_pointer():
    refuse(
        r"k_cache\[layer 0\] is at 0x[0-9a-f]+, expected alignment to its 4-byte elements",
        change=lambda a: a.set_layers(misaligned(small_layers(1)[0])),
    )


def misaligned(layer):
    flat = [6]
    for name in ("k", "v", "pos", "scores"):
        flat += view(layer[name])
    flat[1] += 2
    return flat


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([0, 2, 2], r"kept\[layer 0, batch 0, head 0, 2\] is 2, expected 2 < slot < 6"),
        ([0, 6, 7], r"kept\[layer 0, batch 0, head 0, 1\] is 6, expected 0 < slot < 6"),
        ([-1, 2, 3], r"kept\[layer 0, batch 0, head 0, 0\] is -1"),
    ],
)
def test_compact_refuses_slots_that_cannot_survive(kept, message):
    kept = torch.tensor(kept, dtype=torch.int32).expand(2, 1, 2, 3).contiguous()
    new_lengths = torch.full((2, 1, 2), 3, dtype=torch.int32)
    refuse(message, op=_C.OP_COMPACT, kept=kept, new_lengths=new_lengths, capacity=3)


def test_compact_in_any_order_refuses_sources_that_are_also_destinations():
    kept = torch.tensor([1, 0, 2], dtype=torch.int32).expand(2, 1, 2, 3).contiguous()
    refuse(
        r"kept\[layer 0, batch 0, head 0, 0\] is 1, expected 2 < slot < 6 \(any order\)",
        op=_C.OP_COMPACT,
        kept=kept,
        new_lengths=torch.full((2, 1, 2), 3, dtype=torch.int32),
        capacity=3,
        order=_C.ANY,
    )


# ---- policies -------------------------------------------------------------------------------


def policy_shape(**changes):
    fields = {
        "layers": 2,
        "kv_heads": 2,
        "head_dim_k": 4,
        "head_dim_v": 4,
        "hidden": 20,
        "position_dim": 3,
        "position_rows": 8,
        "norm_eps": 1e-5,
        "flags": _C.POLICY_GAINS | _C.POLICY_NORMS | _C.POLICY_SHARED_POSITIONS,
    }
    return _C.PolicyShape(**{**fields, **changes})


@pytest.mark.parametrize("flags", range(4))
def test_unpack_inverts_pack(flags):
    shape = policy_shape(flags=flags, head_dim_k=6, head_dim_v=5, hidden=17)
    listed = _C.policy_tensors(shape)
    tensors = [torch.randn(rows, max(cols, 1)) for _, rows, cols in listed]
    block = torch.full((_C.policy_block_floats(shape),), NAN)
    _C.policy_pack(shape, [t.data_ptr() for t in tensors], block.data_ptr())
    assert not block.isnan().any()
    assert block.numel() % 16 == 0
    back = [torch.empty_like(t) for t in tensors]
    _C.policy_unpack(shape, block.data_ptr(), [t.data_ptr() for t in back])
    assert all(torch.equal(a, b) for a, b in zip(tensors, back, strict=True))


def test_packed_matrix_lies_in_panels_of_16_outputs():
    shape = policy_shape(flags=0, hidden=20)
    tensors = [torch.randn(rows, max(cols, 1)) for _, rows, cols in _C.policy_tensors(shape)]
    block = torch.empty(_C.policy_block_floats(shape))
    _C.policy_pack(shape, [t.data_ptr() for t in tensors], block.data_ptr())
    panels = block[: 2 * 11 * 16].view(2, 11, 16)
    assert torch.equal(panels[0], tensors[0][:16].T)
    assert torch.equal(panels[1, :, :4], tensors[0][16:].T)
    assert (panels[1, :, 4:] == 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 3}, r"policy has layers 3, the cache has 2"),
        ({"kv_heads": 1}, r"policy has kv_heads 1, the cache has 2"),
        ({"head_dim_v": 8}, r"policy has head_dim_v 8, the cache has 7"),
        ({"hidden": 0}, r"policy hidden is 0, expected 1 to"),
        ({"norm_eps": -1.0}, r"policy norm_eps is -1, expected a finite value >= 0"),
    ],
)
def test_policy_that_does_not_fit(changes, message):
    shape = policy_shape(**{"head_dim_v": 7, **changes})
    weights = torch.zeros(1024)
    refuse(
        message,
        change=lambda a: setattr(
            a, "policy", _C.PolicyView(shape, _C.FLOAT32, weights.data_ptr(), weights.data_ptr())
        ),
    )


# ---- fragments of policies --------------------------------------------------------------------

HALVES = {torch.float16: _C.FLOAT16, torch.bfloat16: _C.BFLOAT16}


def fragments_of(shape, tensors, dtype):
    """The vectors and the weights of one (layer, head) as tensor cores read them."""
    block = torch.empty(_C.policy_block_floats(shape))
    _C.policy_pack(shape, [t.data_ptr() for t in tensors], block.data_ptr())
    size, _ = _C.policy_fragment_bytes(shape)
    memory = torch.full((size + 64,), 0xA5, dtype=torch.uint8)
    _C.policy_fragments(shape, HALVES[dtype], block.data_ptr(), memory.data_ptr())
    assert bool((memory[size:] == 0xA5).all())
    hidden = 64 if shape.hidden <= 64 and not shape.flags & _C.POLICY_GAINS else 256
    gains = 128 * 2 if shape.flags & _C.POLICY_GAINS else 0
    vectors = 9 * hidden + gains + 4
    return memory[: 4 * vectors].view(torch.float32), memory[4 * vectors : size].view(dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("hidden", [17, 64, 65, 256])
@pytest.mark.parametrize("flags", range(4))
def test_fragments_hold_every_weight_once_and_zeros(flags, hidden, dtype):
    """Rounded to nearest even. Where each belongs is what scores tell."""
    shape = policy_shape(flags=flags, head_dim_k=40, head_dim_v=5, hidden=hidden)
    listed = _C.policy_tensors(shape)
    g = torch.Generator().manual_seed(hidden)
    tensors = [torch.randn(rows, max(cols, 1), generator=g) for _, rows, cols in listed]
    vectors, weights = fragments_of(shape, tensors, dtype)

    def sorted_values(parts):
        values = torch.cat([p.flatten() for p in parts]).float()
        return values[values != 0].sort().values

    matrices = [t.to(dtype) for t, (_, _, cols) in zip(tensors, listed, strict=True) if cols]
    others = [t for t, (_, _, cols) in zip(tensors, listed, strict=True) if not cols]
    if not flags & _C.POLICY_NORMS:
        others.append(torch.ones(2 * hidden))  # norms that change nothing
    assert torch.equal(sorted_values([weights]), sorted_values(matrices))
    assert torch.equal(sorted_values([vectors]), sorted_values(others))


def test_a_narrow_policy_lies_in_tiles_of_8_outputs():
    shape = policy_shape(flags=0, hidden=20, head_dim_k=40, head_dim_v=5, position_dim=3)
    tensors = [torch.randn(rows, max(cols, 1)) for _, rows, cols in _C.policy_tensors(shape)]
    _, weights = fragments_of(shape, tensors, torch.bfloat16)
    n_blocks = 1 + 2 + 1 + 2  # of 32 inputs: v, k, positions, hidden
    tiles = weights[: n_blocks * 64 * 32].view(n_blocks, 64, 4, 8)  # output, lane quarter, input
    half = [t.bfloat16() for t in tensors]
    w1 = torch.nn.functional.pad(half[0], (0, 0, 0, 44))
    k, v, p = w1.split([40, 5, 3], dim=1)
    pad = torch.nn.functional.pad
    inputs = torch.cat([pad(v, (0, 27)), pad(k, (0, 24)), pad(p, (0, 29))], dim=1)
    assert torch.equal(tiles[:4].flatten(2).transpose(0, 1).flatten(1), inputs)
    w2 = pad(half[2], (0, 44, 0, 44))
    for block in range(2):
        for q in range(4):
            columns = [32 * block + 8 * (i // 2) + 2 * q + i % 2 for i in range(8)]
            assert torch.equal(tiles[4 + block, :, q], w2[:, columns])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_position_features_are_rounded_to_nearest_even(dtype):
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (4096, 33), generator=g).to(torch.int32)
    features = bits.view(torch.float32)
    overflows = features.isfinite() & features.to(dtype).isinf()
    features = features.masked_fill(overflows, 1.0)
    unit = torch.finfo(dtype).eps
    special = [0.0, -0.0, INF, -INF, NAN, 1 + unit / 2, 1 + 3 * unit / 2, 5.96e-8, 2.98e-8, 8.94e-8]
    features[0, : len(special)] = torch.tensor(special)
    shape = policy_shape(position_dim=33)
    _, row_bytes = _C.policy_fragment_bytes(shape)
    assert row_bytes == 2 * 64
    rounded = torch.full((4096, 64), 7.0, dtype=dtype)
    _C.policy_position_fragments(
        shape, HALVES[dtype], features.data_ptr(), 4096, rounded.data_ptr()
    )
    want = torch.nn.functional.pad(features.to(dtype), (0, 31))
    assert torch.equal(rounded.isnan(), want.isnan())
    numbers = ~want.isnan()
    assert torch.equal(rounded.view(torch.int16)[numbers], want.view(torch.int16)[numbers])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden": 257}, RuntimeError, "hidden 257, the CUDA kernels support up to 256"),
        ({"head_dim_k": 257}, RuntimeError, "head_dim_k 257, the CUDA kernels support up to 256"),
        ({"head_dim_v": 999}, RuntimeError, "head_dim_v 999, the CUDA kernels support up to 256"),
        ({"position_dim": 257}, RuntimeError, "position_dim 257, the CUDA kernels support up to"),
        ({"hidden": 0}, ValueError, "policy hidden is 0, expected 1 to"),
    ],
)
def test_no_fragments_of_a_policy_without_a_kernel(changes, error, message):
    with pytest.raises(error, match=message):
        _C.policy_fragment_bytes(policy_shape(**changes))


def test_bad_arguments_of_fragments():
    shape = policy_shape()
    floats = torch.zeros(_C.policy_block_floats(shape))
    out = torch.zeros(_C.policy_fragment_bytes(shape)[0], dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"dtype is 0, expected KVP_FLOAT16 \(1\) or KVP_BFLOAT16"):
        _C.policy_fragments(shape, _C.FLOAT32, floats.data_ptr(), out.data_ptr())
    with pytest.raises(ValueError, match="block is NULL"):
        _C.policy_fragments(shape, _C.FLOAT16, 0, out.data_ptr())
    with pytest.raises(ValueError, match="fragments is NULL"):
        _C.policy_fragments(shape, _C.FLOAT16, floats.data_ptr(), 0)
    with pytest.raises(ValueError, match="rows is -1, expected >= 0"):
        _C.policy_position_fragments(shape, _C.FLOAT16, floats.data_ptr(), -1, out.data_ptr())
    with pytest.raises(ValueError, match="positions is NULL"):
        _C.policy_position_fragments(shape, _C.FLOAT16, 0, 1, out.data_ptr())
    floats[0] = 65520.0
    with pytest.raises(ValueError, match="a weight of 65520, beyond float16"):
        _C.policy_fragments(shape, _C.FLOAT16, floats.data_ptr(), out.data_ptr())
    with pytest.raises(ValueError, match="a weight of 65520, beyond float16"):
        _C.policy_position_fragments(shape, _C.FLOAT16, floats.data_ptr(), 1, out.data_ptr())
    _C.policy_fragments(shape, _C.BFLOAT16, floats.data_ptr(), out.data_ptr())


@pytest.mark.parametrize(
    ("device", "cache", "expected"),
    [
        (_C.CPU, torch.bfloat16, _C.FLOAT32),
        pytest.param(_C.SIMT, torch.float32, _C.BFLOAT16, marks=needs_simt),
        pytest.param(_C.SIMT, torch.float16, _C.FLOAT16, marks=needs_simt),
        pytest.param(_C.SIMT, torch.bfloat16, _C.BFLOAT16, marks=needs_simt),
    ],
)
def test_the_form_of_a_policy_must_be_that_of_the_device_and_the_cache(device, cache, expected):
    shape = policy_shape(head_dim_v=7)
    weights = torch.zeros(1 << 20, dtype=torch.uint8)
    for dtype in {_C.FLOAT32, _C.FLOAT16, _C.BFLOAT16} - {expected}:
        layers = random_cache(torch.Generator(), 2, 1, 2, 6, 4, cache)
        view = _C.PolicyView(shape, dtype, weights.data_ptr(), weights.data_ptr())
        refuse(
            rf"policy.dtype is {dtype}, expected {expected} on this device",
            layers,
            change=lambda args, view=view: setattr(args, "policy", view),
            device=device,
        )


@needs_simt
def test_misaligned_weights():
    shape = policy_shape(head_dim_v=7)
    weights = torch.zeros(1 << 20, dtype=torch.uint8).data_ptr()
    for name, view in {
        "weights": _C.PolicyView(shape, _C.BFLOAT16, weights + 16, weights),
        "positions": _C.PolicyView(shape, _C.BFLOAT16, weights, weights + 8),
    }.items():
        refuse(
            rf"policy.{name} is at 0x[0-9a-f]+, expected \d\d-byte alignment",
            change=lambda args, view=view: setattr(args, "policy", view),
            device=_C.SIMT,
        )


def test_devices_are_the_backends_of_the_package():
    devices = _C.devices()
    assert devices[0] == "cpu"
    assert set(devices) <= {"cpu", "cuda", "simt"}
    assert ("simt" in devices) == ("simt" in kvp_ext.backends())


def test_unknown_isa():
    with pytest.raises(ValueError, match=r'isa is "v9", expected one of .*baseline'):
        _C.cpu_use_isa("v9")
    assert _C.cpu_isas()[-1] == "baseline"
