"""Properties over random shapes, strides, dtypes, lengths, budgets and modes."""

import pytest
import torch
from helpers import (
    BACKENDS,
    DTYPES,
    LAYOUTS,
    TENSOR_CORE_BACKENDS,
    assert_evicted,
    assert_same,
    expected_eviction,
    make_cache,
    random_scores,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import kvp_ext

SHAPES = st.fixed_dictionaries(
    {
        "L": st.integers(1, 3),
        "B": st.integers(1, 3),
        "H": st.integers(1, 3),
        "T": st.integers(0, 40),
        "D": st.integers(1, 20),
        "Dv": st.integers(1, 20),
    }
)


@st.composite
def evictions(draw):
    shape = draw(SHAPES)
    L, B, H, T = (shape[d] for d in "LBHT")
    mode = draw(st.sampled_from(["per_head", "union", "model"]))
    case = {
        "shape": shape,
        "dtype": draw(st.sampled_from(DTYPES)),
        "layout": draw(st.sampled_from(LAYOUTS)),
        "pos": draw(st.sampled_from(["shared", "batch", "head"])),
        "seed": draw(st.integers(0, 2**16)),
        "ties": draw(st.booleans()),
        "mode": mode,
        "order": draw(st.sampled_from(["stable", "any"])),
        "sinks": draw(st.integers(0, 6)),
        "recent": draw(st.integers(0, 6)),
        "lengths": draw(
            st.one_of(
                st.none(), st.lists(st.integers(-1, T), min_size=B, max_size=B).map(torch.tensor)
            )
        ),
        "padding": draw(st.lists(st.integers(0, 12), min_size=B, max_size=B)),
    }
    if mode == "model":
        case["budget"] = draw(st.integers(L * H, L * H * (T + 2)))
    else:
        case["budget"] = draw(
            st.one_of(
                st.integers(0, T + 3),
                st.lists(st.integers(0, T + 3), min_size=L, max_size=L),
            )
        )
    return case


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
@given(case=evictions())
@settings(max_examples=150, deadline=None)
def test_any_eviction_keeps_what_the_definition_keeps(name, case):
    s = case["shape"]
    cache = make_cache(
        s["L"], s["B"], s["H"], s["T"], s["D"], s["Dv"],
        dtype=case["dtype"], layout=case["layout"], pos=case["pos"], seed=case["seed"],
    )  # fmt: skip
    if case["pos"] != "shared":
        for b, pad in enumerate(case["padding"]):  # left padding, then logical positions
            row = (torch.arange(s["T"]) - pad).clamp(min=-1)
            if case["pos"] == "head":
                cache.pos[:, b] = row
            else:
                cache.pos[b] = row
    scores = random_scores(s["L"], s["B"], s["H"], s["T"], seed=case["seed"], ties=case["ties"])
    rules = {key: case[key] for key in ("lengths", "sinks", "recent", "mode", "order")}
    want = expected_eviction(cache, scores, case["budget"], **rules)
    before = cache.clone()
    buffer = scores.clone()
    result = kvp_ext.evict_(
        cache.k, cache.v, cache.pos, case["budget"],
        scores=buffer, return_indices=True, backend=name, **rules,
    )  # fmt: skip
    assert_evicted(cache, result, want)
    if not result.evicted:
        for now, then in zip(
            cache.rows()[0] + cache.rows()[1], before.rows()[0] + before.rows()[1], strict=True
        ):
            assert_same(now, then)
        assert torch.equal(buffer.view(torch.int32), scores.view(torch.int32))
    # Evicting again to the same budget changes nothing.
    if case["pos"] == "head":
        again = kvp_ext.evict_(
            cache.k, cache.v, cache.pos, case["budget"],
            scores=buffer, backend=name, **(rules | {"lengths": result.lengths}),
        )  # fmt: skip
        assert not again.evicted
        assert_same(again.lengths, result.lengths)


@given(shape=SHAPES, dtype=st.sampled_from(DTYPES), layout=st.sampled_from(LAYOUTS),
       seed=st.integers(0, 2**16), paper=st.booleans())  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_shape_is_scored_like_the_reference(shape, dtype, layout, seed, paper):
    cache = make_cache(**shape, dtype=dtype, layout=layout, seed=seed)
    policy = kvp_ext.Policy.random(
        layers=shape["L"], kv_heads=shape["H"], head_dim=shape["D"], head_dim_v=shape["Dv"],
        architecture="paper" if paper else "small", seed=seed, max_position=30,
    )  # fmt: skip
    scores = {
        name: kvp_ext.score(cache.k, cache.v, cache.pos, policy=policy, backend=name)
        for name in BACKENDS
    }
    expected = scores.pop("reference")
    for name, actual in scores.items():
        if name in TENSOR_CORE_BACKENDS:
            # Few scores may all happen to be near 0, which their error knows nothing of.
            many = make_cache(**shape | {"T": 64}, seed=seed)
            usual = kvp_ext.score(many.k, many.v, many.pos, policy=policy, backend="cpu")
            assert_same(actual, expected, atol=1e-2 * float(usual.abs().max()))
        else:
            assert_same(actual, expected, rtol=1e-4, atol=2e-5)
