"""Each method against its definition in plain loops, and what all of them must hold."""

import math

import pytest
import torch

from python_ref.methods import methods
from python_ref.selection import select

H, G, DK, DV = 2, 3, 8, 6


def inputs(n, lead=(), future=5, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*lead, *shape, generator=g).to(dtype)

    return {
        "k": draw(H, n, DK),
        "v": draw(H, n, DV),
        "q": 2 * draw(H * G, n, DK),
        "future_q": 2 * draw(H * G, future, DK),
        "future_k": draw(H, future, DK),
    }


def softmax_weights(q, k, t):
    """[H G, t + 1] attention of query t over keys 0 .. t."""
    logits = torch.stack([k[h // G, : t + 1] @ q[h, t] for h in range(H * G)]) / math.sqrt(DK)
    return logits.softmax(dim=-1)


def group_mean(x):
    return torch.stack([x[h * G : (h + 1) * G].mean(dim=0) for h in range(H)])


def test_registry():
    assert list(methods()) == [
        "h2o", "keydiff", "knorm", "lagkv", "oracle", "random", "snapkv", "streaming_llm", "tova",
    ]  # fmt: skip
    sees = {name for name, method in methods().items() if method.sees_queries}
    assert sees == {"h2o", "oracle", "snapkv", "tova"}
    pins = {name: (m.sinks, m.recent) for name, m in methods().items() if m.sinks or m.recent}
    assert pins == {"lagkv": (4, 128), "snapkv": (0, 64), "streaming_llm": (4, 0)}
    assert methods()["snapkv"].reads == ("k", "q")
    for method in methods().values():
        assert "register" not in method.__doc__


def test_streaming_llm():
    x = inputs(9)
    scores = methods()["streaming_llm"](**x, pos=torch.arange(9) + 100)
    assert scores[0].tolist() == [math.inf] * 4 + [104, 105, 106, 107, 108]
    kept = select(scores[None, None], 6, pos=torch.arange(9), sinks=0, recent=0).kept
    assert kept[0, 0, 1].tolist() == [0, 1, 2, 3, 7, 8]


def test_tova():
    x = inputs(11)
    expected = softmax_weights(x["q"], x["k"], 10).mean(dim=0)
    scores = methods()["tova"](**x)
    torch.testing.assert_close(scores[0], expected)
    assert torch.equal(scores[0], scores[1])
    last_only = {**x, "q": x["q"][:, -1:]}
    torch.testing.assert_close(methods()["tova"](**last_only), scores)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("pooling", ["avg", "max", "none"])
def test_snapkv(pooling, reduction):
    n, window, kernel = 20, 6, 5
    x = inputs(n)
    votes = torch.zeros(H * G, n - window)
    for t in range(n - window, n):
        votes += softmax_weights(x["q"], x["k"], t)[:, : n - window]
    if reduction == "mean":
        votes /= window
    pooled = torch.zeros_like(votes)
    for i in range(n - window):
        near = votes[:, max(0, i - 2) : i + 3]
        if pooling == "avg":
            pooled[:, i] = near.sum(dim=1) / kernel
        else:
            pooled[:, i] = near.amax(dim=1) if pooling == "max" else votes[:, i]
    expected = group_mean(pooled)
    scores = methods()["snapkv"](
        **x, window=window, kernel=kernel, pooling=pooling, reduction=reduction
    )
    torch.testing.assert_close(scores[:, : n - window], expected)
    assert (scores[:, n - window :] > scores[:, : n - window].amax(dim=1, keepdim=True)).all()
    assert (scores[:, n - window :].diff(dim=1) > 0).all()


def test_snapkv_within_its_window_is_recency():
    x = inputs(10)
    scores = methods()["snapkv"](**x)
    kept = select(scores[None, None], 3, pos=torch.arange(10), sinks=0, recent=0).kept
    assert kept[0, 0].tolist() == [[7, 8, 9]] * H


def test_snapkv_arguments():
    x = inputs(10)
    few = {**x, "q": x["q"][:, -3:]}
    with pytest.raises(ValueError, match="q: got 3 queries, expected at least 4"):
        methods()["snapkv"](**few, window=4)
    with pytest.raises(ValueError, match="pooling: got 'mean'"):
        methods()["snapkv"](**x, pooling="mean")
    with pytest.raises(ValueError, match="reduction: got 'max'"):
        methods()["snapkv"](**x, reduction="max")
    with pytest.raises(ValueError, match="kernel: got 4"):
        methods()["snapkv"](**x, kernel=4)


@pytest.mark.parametrize("queries", [12, 5])
def test_h2o(queries):
    n = 12
    x = inputs(n)
    total, viewers = torch.zeros(H * G, n), torch.zeros(n)
    for t in range(n - queries, n):
        total[:, : t + 1] += softmax_weights(x["q"], x["k"], t)
        viewers[: t + 1] += 1
    scores = methods()["h2o"](**{**x, "q": x["q"][:, n - queries :]}, block=4)
    torch.testing.assert_close(scores, group_mean(total / viewers))


def test_lagkv():
    n, sinks, lag = 23, 3, 6
    x = inputs(n)
    expected = torch.zeros(H, 2 * lag)
    for tensor in (x["k"], x["v"]):
        for h in range(H):
            for part in range(2):
                own = tensor[h, sinks + part * lag :][:lag]
                following = tensor[h, sinks + (part + 1) * lag :][:lag]
                low, high = following.min(dim=0).values, following.max(dim=0).values
                spread = ((own - low) / (high - low)).std(dim=1)
                expected[h, part * lag : (part + 1) * lag] += spread.softmax(dim=0) / 2
    scores = methods()["lagkv"](**x, sinks=sinks, lag=lag)
    assert (scores[:, :sinks] == math.inf).all()
    torch.testing.assert_close(scores[:, sinks : sinks + 2 * lag], expected)
    pinned = scores[:, sinks + 2 * lag :]
    assert pinned.shape[1] == n - sinks - 2 * lag
    assert (pinned > expected.amax(dim=1, keepdim=True)).all()


def test_lagkv_shorter_than_two_partitions_is_recency():
    scores = methods()["lagkv"](**inputs(259))
    assert (scores[:, 4:].diff(dim=1) == 1).all()
    assert (scores[:, :4] == math.inf).all()
    longer = methods()["lagkv"](**inputs(260))
    assert not (longer[:, 4:132].diff(dim=1) > 0).all()


def test_lagkv_constant_channel_counts_as_zero():
    x = inputs(23)
    x["k"][..., 3] = 5.0
    scores = methods()["lagkv"](**x, sinks=3, lag=6)
    assert not scores.isnan().any()
    x["k"][..., 3] = -7.0
    torch.testing.assert_close(methods()["lagkv"](**x, sinks=3, lag=6), scores)


def test_keydiff():
    x = inputs(9)
    for h in range(H):
        unit = torch.stack([key / key.norm() for key in x["k"][h]])
        mean = unit.mean(dim=0)
        expected = torch.stack([-(u @ mean) / mean.norm() for u in unit])
        torch.testing.assert_close(methods()["keydiff"](**x)[h], expected)


def test_knorm_in_float32():
    k = torch.tensor([[[3.0, 4.0], [256.0, 1.0], [256.0, 3.0]]]).bfloat16()
    scores = methods()["knorm"](k=k)
    expected = [-5.0, -math.sqrt(65_537), -math.sqrt(65_545)]
    torch.testing.assert_close(scores, torch.tensor([expected]))
    assert scores[0, 1] > scores[0, 2]


def test_oracle():
    n, future = 9, 5
    x = inputs(n, future=future)
    q = torch.cat([x["q"], x["future_q"]], dim=1)
    k = torch.cat([x["k"], x["future_k"]], dim=1)
    expected = torch.zeros(H, n)
    for t in range(n, n + future):
        weights = softmax_weights(q, k, t)[:, :n].reshape(H, G, n)
        expected += weights.amax(dim=1)
    torch.testing.assert_close(methods()["oracle"](**x), expected)


def test_random_is_seeded_noise():
    x = inputs(500, lead=(3, 2))
    scores = methods()["random"](k=x["k"])
    assert torch.equal(scores, methods()["random"](k=x["k"], seed=0))
    assert not torch.equal(scores, methods()["random"](k=x["k"], seed=1))
    rows = scores.reshape(-1, 500)
    assert (rows.corrcoef() - torch.eye(len(rows))).abs().max() < 0.2
    assert rows.min() >= 0
    assert rows.max() < 1
    assert abs(float(rows.mean()) - 0.5) < 0.02


@pytest.mark.parametrize("name", methods())
def test_layers_and_sequences_are_independent(name):
    x = inputs(270, lead=(2, 2))
    scores = methods()[name](**x)
    assert scores.shape == (2, 2, H, 270)
    assert scores.dtype == torch.float32
    if name != "random":
        alone = methods()[name](**{key: t[1, 0] for key, t in x.items()})
        torch.testing.assert_close(scores[1, 0], alone)


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@pytest.mark.parametrize("name", methods())
def test_padding_changes_nothing(name, side):
    n, pad = 270, 13
    x = inputs(n, lead=(2,))
    at = {"left": 0, "right": n, "middle": 100}[side]
    pos = torch.arange(n).repeat(2, 1)
    padded = {**x, "pos": torch.cat([pos[:, :at], torch.full((2, pad), -1), pos[:, at:]], dim=1)}
    for key in ("k", "v", "q"):
        junk = torch.full((*x[key].shape[:2], pad, x[key].shape[-1]), torch.nan)
        padded[key] = torch.cat([x[key][:, :, :at], junk, x[key][:, :, at:]], dim=2)
    scores = methods()[name](**padded)
    assert scores[..., at : at + pad].isnan().all()
    rest = torch.cat([scores[..., :at], scores[..., at + pad :]], dim=-1)
    torch.testing.assert_close(rest, methods()[name](**x, pos=pos))


@pytest.mark.parametrize("name", methods())
def test_degenerate_caches_are_finite(name):
    one = methods()[name](**inputs(1))
    assert one.shape == (H, 1)
    assert not one.isnan().any()
    assert methods()[name](**inputs(0)).shape == (H, 0)
    x = inputs(270)
    for key in ("k", "v"):
        x[key] = torch.ones_like(x[key])
    assert not methods()[name](**x).isnan().any()
    x["k"] = torch.zeros_like(x["k"])
    assert not methods()[name](**x).isnan().any()
    half = methods()[name](**inputs(270, dtype=torch.bfloat16))
    assert half.dtype == torch.float32
    assert not half.isnan().any()


@pytest.mark.parametrize("name", methods())
def test_heads_that_hold_different_slots(name):
    x = inputs(280)
    valid = torch.ones(H, 280, dtype=torch.bool)
    valid[1, 270:] = False
    method = methods()[name]
    if method.sees_queries:
        with pytest.raises(ValueError, match="valid: got different slots in the heads"):
            method(**x, valid=valid)
        return
    scores = method(**x, valid=valid)
    assert scores[1, 270:].isnan().all()
    cut = {key: t[:, :270] if key in ("k", "v") else t for key, t in x.items()}
    torch.testing.assert_close(scores[1, :270], method(**cut)[1])
    torch.testing.assert_close(scores[0], method(**x)[0])


@pytest.mark.parametrize("name", methods())
def test_missing_inputs_are_named(name):
    x = inputs(8)
    for read in methods()[name].reads:
        if read in ("k", "pos", "row"):
            continue
        with pytest.raises(ValueError, match=f"{read}: got None, .* {name} reads it"):
            methods()[name](**{**x, read: None})
