"""Bad input: an exception that names the argument, what it was and what was expected, and a cache
that is byte-identical to before."""

import pytest
import torch
from helpers import assert_same, make_cache, random_scores

import kvp_ext

L, B, H, T, D = 2, 2, 2, 24, 8


def good() -> dict:
    cache = make_cache(L, B, H, T, D, pos="head")
    return {
        "k_cache": cache.k,
        "v_cache": cache.v,
        "pos": cache.pos,
        "budget": 10,
        "scores": random_scores(L, B, H, T),
    }


def policy(**kwargs: int) -> kvp_ext.Policy:
    geometry = {"layers": L, "kv_heads": H, "head_dim": D} | kwargs
    return kvp_ext.Policy.random(**geometry)


def aliased_v(args: dict) -> None:
    args["v_cache"] = args["k_cache"]


def overlapping_v(args: dict) -> None:
    storage = torch.randn(args["k_cache"].numel() + 4)
    args["k_cache"] = storage[: args["k_cache"].numel()].view(L, B, H, T, D)
    args["v_cache"] = storage[4:].view(L, B, H, T, D)


def two_layers_in_one_place(args: dict) -> None:
    layer = torch.randn(B, H, T, D)
    args["k_cache"] = [layer, layer]
    args["v_cache"] = list(args["v_cache"])


def sliding_windows(args: dict) -> None:
    args["k_cache"] = torch.randn(4000).as_strided((L, B, H, T, D), (768, 384, 192, 4, 1))


def ragged_union_positions(args: dict) -> None:
    args["mode"] = "union"
    args["pos"][0, 0, 1, 7:] = -1


RAGGED = torch.tensor([[[9, 8], [9, 9]], [[9, 9], [9, 9]]])


def set_to(**values: object):
    def change(args: dict) -> None:
        args.update(values)

    change.__name__ = ",".join(f"{k}={str(v)[:24]}" for k, v in values.items())
    return change


def cast(name: str, dtype: torch.dtype):
    def change(args: dict) -> None:
        args[name] = args[name].to(dtype)

    change.__name__ = f"{name}.to({dtype})"
    return change


def both(dtype: torch.dtype):
    def change(args: dict) -> None:
        args["k_cache"] = args["k_cache"].to(dtype)
        args["v_cache"] = args["v_cache"].to(dtype)

    change.__name__ = f"integer caches {dtype}"
    return change


BAD = [
    # what is changed, the exception, words the message must hold
    (set_to(k_cache=3), TypeError, ["k_cache", "int"]),
    (set_to(k_cache=torch.randn(B, H, T, D)), ValueError, ["k_cache", "[2, 2, 24, 8]", "[L, B"]),
    (set_to(v_cache=torch.randn(L, B, H, T + 1, D)), ValueError, ["v_cache", "25", "24"]),
    (set_to(v_cache=torch.randn(L + 1, B, H, T, D)), ValueError, ["v_cache", "3", "2"]),
    (set_to(k_cache=[torch.randn(B, H, T)] * 2), ValueError, ["k_cache[0]", "[2, 2, 24]"]),
    (cast("v_cache", torch.float16), TypeError, ["v_cache", "float16", "float32"]),
    (both(torch.int8), TypeError, ["k_cache", "int8", "bfloat16"]),
    (both(torch.float64), TypeError, ["k_cache", "float64", "bfloat16"]),
    (set_to(pos=torch.arange(T - 1)), ValueError, ["pos", "23", "24"]),
    (set_to(pos=torch.rand(T)), TypeError, ["pos", "float32", "int64"]),
    (set_to(pos=None), TypeError, ["pos", "NoneType"]),
    (set_to(pos=torch.arange(T).expand(L, B, H, T)), ValueError, ["pos", "stride"]),
    (set_to(pos=[torch.arange(T)]), ValueError, ["pos", "1 layers", "2"]),
    (set_to(budget=-1), ValueError, ["budget", "-1"]),
    (set_to(budget=True), TypeError, ["budget", "True"]),
    (set_to(budget=0.5), TypeError, ["budget", "0.5", "budget_from_ratio"]),
    (set_to(budget=torch.tensor([1.0, 2.0])), TypeError, ["budget", "float32"]),
    (set_to(budget=torch.tensor([True, True])), TypeError, ["budget", "bool"]),
    (set_to(budget=[4, -2]), ValueError, ["budget", "-2"]),
    (set_to(budget=[1, 2, 3]), ValueError, ["budget", "[3]", "[2]"]),
    (set_to(budget=3, mode="model"), ValueError, ["budget", "3", "4"]),
    (set_to(budget=torch.tensor([[1, 2], [3, 4], [5, 6]])), ValueError, ["budget", "[3, 2]"]),
    (set_to(sinks=-1), ValueError, ["sinks", "-1"]),
    (set_to(recent=1.5), TypeError, ["recent", "1.5"]),
    (set_to(mode="heads"), ValueError, ["mode", "'heads'", "'union'"]),
    (set_to(order="sorted"), ValueError, ["order", "'sorted'", "'stable'"]),
    (set_to(lengths=torch.tensor([25, 3])), ValueError, ["lengths", "25", "24"]),
    (set_to(lengths=torch.tensor([1, 2, 3])), ValueError, ["lengths", "[3]", "[2]"]),
    (set_to(lengths=torch.tensor([1.0, 2.0])), TypeError, ["lengths", "float32"]),
    (set_to(scores=torch.randn(L, B, H, T - 1)), ValueError, ["scores", "23", "24"]),
    (set_to(scores=torch.randn(L, B, H, T).double()), TypeError, ["scores", "float64"]),
    (set_to(scores=torch.randn(1, B, 1, T).expand(L, B, H, T)), ValueError, ["scores"]),
    (set_to(backend="gpu"), ValueError, ["backend", "'gpu'", "'cpu'"]),
    (set_to(policy="small"), TypeError, ["policy", "str", "load_policy"]),
    (set_to(policy=policy(layers=3)), ValueError, ["policy", "layers", "3", "2"]),
    (set_to(policy=policy(kv_heads=1)), ValueError, ["policy", "heads", "1", "2"]),
    (set_to(policy=policy(head_dim=16)), ValueError, ["policy", "head_dim", "16", "8"]),
    (set_to(policy=policy(head_dim_v=4)), ValueError, ["policy", "head_dim_v", "4", "8"]),
    (set_to(k_cache=torch.randn(L, B, H, T, 1).expand(L, B, H, T, D)), ValueError, ["k_cache"]),
    (set_to(v_cache=torch.randn(L, B, 1, T, D).expand(L, B, H, T, D)), ValueError, ["v_cache"]),
    (set_to(k_cache=torch.randn(L, B, H, D, T).transpose(3, 4)), ValueError, ["k_cache", "stride"]),
    (set_to(k_cache=torch.randn(L, B, H, T, D, requires_grad=True)), ValueError, ["grad"]),
    (set_to(budget=[2**80, -3]), ValueError, ["budget", "-3"]),
    (set_to(lengths=2**80), ValueError, ["lengths", "24"]),
    (set_to(mode=["union"]), ValueError, ["mode", "['union']"]),
    (set_to(backend=["cpu"]), TypeError, ["backend", "['cpu']"]),
    (set_to(k_cache=torch.empty(L, B, H, T, D, device="meta")), TypeError, ["k_cache", "meta"]),
    (set_to(v_cache=torch.empty(L, B, H, T, 0)), ValueError, ["v_cache", "head dim"]),
    (ragged_union_positions, ValueError, ["pos", "head 1", "union"]),
    (set_to(mode="union", lengths=RAGGED), ValueError, ["lengths", "head 1", "union"]),
    (aliased_v, ValueError, ["v_cache", "k_cache"]),
    (overlapping_v, ValueError, ["v_cache", "k_cache", "overlap"]),
    (two_layers_in_one_place, ValueError, ["k_cache", "overlap"]),
    (sliding_windows, ValueError, ["k_cache", "overlap"]),
]


@pytest.mark.parametrize(
    ("change", "error", "words"), BAD, ids=[getattr(b[0], "__name__", "?") for b in BAD]
)
def test_bad_input_is_refused_and_nothing_moves(backend, change, error, words):
    args = good() | {"backend": backend}
    change(args)
    tensors = [
        t
        for value in args.values()
        for t in (value if isinstance(value, list) else [value])
        if isinstance(t, torch.Tensor) and not t.is_meta
    ]
    before = [t.detach().clone() for t in tensors]
    with pytest.raises(error) as caught:
        kvp_ext.evict_(**args)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    for now, then in zip(tensors, before, strict=True):
        assert_same(now.detach(), then)


def test_no_policy_says_the_remedy():
    args = good()
    del args["scores"]
    with pytest.raises(RuntimeError, match=r"kvp_ext\.use\(policy\)"):
        kvp_ext.evict_(**args)


def test_missing_cuda_backend_says_the_remedy():
    with pytest.raises(RuntimeError, match="backend='reference'") as caught:
        kvp_ext.evict_(**good(), backend="cuda")
    assert len(str(caught.value).splitlines()) == 3
    assert "available" in kvp_ext.backends()["cpu"]
    assert "no CUDA" in kvp_ext.backends()["cuda"]


@pytest.mark.parametrize(
    ("kept", "lengths", "words"),
    [
        ([[0, 24]], [2], ["24"]),
        ([[3, 2]], [2], ["is 2", "3 <"]),
        ([[1, 1]], [2], ["is 1", "1 <"]),
        ([[-5, 2]], [2], ["-5"]),
        ([[0, 1]], [3], ["3", "2"]),
        ([[0, 1]], [-2], ["-2"]),
    ],
)
def test_a_selection_that_lies_is_refused(kept, lengths, words):
    cache = make_cache(1, 1, 1, T, D)
    before = cache.clone()
    selection = kvp_ext.Selection(
        kept=torch.tensor(kept, dtype=torch.int32).view(1, 1, 1, 2),
        lengths=torch.tensor(lengths, dtype=torch.int32).view(1, 1, 1),
    )
    with pytest.raises(ValueError, match="selection|kept|length") as caught:
        kvp_ext.compact_(cache.k, cache.v, cache.pos, selection)
    for word in words:
        assert word in str(caught.value)
    assert_same(cache.k, before.k)


@pytest.mark.parametrize("selection", [None, (1, 2), kvp_ext.Selection(None, None)])
def test_something_else_than_a_selection_is_refused(selection):
    cache = make_cache(1, 1, 1, T, D)
    with pytest.raises(TypeError, match="selection is"):
        kvp_ext.compact_(cache.k, cache.v, cache.pos, selection)


def test_select_needs_scores(backend):
    with pytest.raises(TypeError, match="scores is None"):
        kvp_ext.select(None, 5, pos=torch.arange(4), backend=backend)


@pytest.mark.parametrize(
    "change",
    [{"layers": True}, {"kv_heads": 2.5}, {"head_dim": "a"}, {"head_dim_v": 0}, {"seed": -1}],
)
def test_random_policies_refuse_bad_sizes(change):
    (name,) = change
    with pytest.raises((TypeError, ValueError), match=f"{name} is"):
        policy(**change)


@pytest.mark.parametrize("value", [5, None, b"x", True])
def test_load_policy_needs_a_name_or_a_path(value):
    with pytest.raises(TypeError, match="name_or_path is"):
        kvp_ext.load_policy(value)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, 2**31])
def test_thread_counts(value):
    with pytest.raises((ValueError, TypeError), match="threads"):
        kvp_ext.set_num_threads(value)
