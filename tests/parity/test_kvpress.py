"""Scores of kvpress and of `python_ref.methods` on the same keys, values, queries and attention.

Run by `make parity` in an environment of its own, since kvpress pins transformers. Where
definitions differ an option of ours reproduces theirs; docs/methods.md lists the differences.
"""

from types import SimpleNamespace

import pytest
import torch

kvpress = pytest.importorskip("kvpress", reason="make parity installs kvpress")

from families import FAMILIES, LAYERS, make, random_ids  # noqa: E402

from python_ref.allocators import allocate  # noqa: E402
from python_ref.decoder import prefill  # noqa: E402
from python_ref.gates.hidden import hidden_states  # noqa: E402
from python_ref.methods import methods  # noqa: E402
from python_ref.rope import rope_of  # noqa: E402

N = 300
MODELS = ("llama", "llama-scaled-rope", "qwen2", "qwen3", "phi3")


@pytest.fixture(scope="module", params=MODELS)
def run(request):
    """What one prefill leaves, for both sides."""
    assert request.param in FAMILIES
    model = make(request.param)
    ids, calls, hidden = random_ids(N), [], {}
    with hidden_states(model, hidden.__setitem__):
        k, v = prefill(model, ids, watcher=calls.append)
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_attentions=True, use_cache=False)
        embeddings = model.model.rotary_emb(hidden[0], torch.arange(N)[None])
    for layer in model.model.layers:
        layer.self_attn.rotary_emb = model.model.rotary_emb
    return SimpleNamespace(
        model=model, k=k, v=v, q=torch.stack([call.query[0] for call in calls]),
        hidden=hidden, attentions=output.attentions, embeddings=embeddings, rope=rope_of(model),
    )  # fmt: skip


def theirs(press, run, layer, *, attentions=True):
    """[H, n] of one layer."""
    with torch.no_grad():
        scores = press.score(
            run.model.model.layers[layer].self_attn,
            run.hidden[layer],
            run.k[layer][None],
            run.v[layer][None],
            run.attentions[layer] if attentions else None,
            {"position_embeddings": run.embeddings},
        )
    return scores[0].float()


def ours(name, run, layer, **options):
    """[H, n] of one layer."""
    return methods()[name](k=run.k[layer], v=run.v[layer], q=run.q[layer], rope=run.rope, **options)


def assert_close(mine, other):
    torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("attentions", [True, False])
@pytest.mark.parametrize(("window", "kernel"), [(64, 5), (32, 7), (8, 1)])
def test_snapkv(run, layer, window, kernel, attentions):
    press = kvpress.SnapKVPress(window_size=window, kernel_size=kernel)
    other = theirs(press, run, layer, attentions=attentions)
    mine = ours("snapkv", run, layer, window=window, kernel=kernel)
    # The window is pinned by both, by ours in ascending order.
    assert_close(mine[:, : N - window], other[:, : N - window])
    assert bool((mine[:, N - window :] > mine[:, : N - window].amax()).all())


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("attentions", [True, False])
def test_tova(run, layer, attentions):
    other = theirs(kvpress.TOVAPress(), run, layer, attentions=attentions)
    mine = ours("tova", run, layer)
    # Theirs pins the last token; ours ranks it by its attention like all others.
    assert_close(mine[:, :-1], other[:, :-1])


@pytest.mark.parametrize("layer", range(LAYERS))
def test_h2o(run, layer):
    assert_close(ours("h2o", run, layer), theirs(kvpress.ObservedAttentionPress(), run, layer))


@pytest.mark.parametrize("layer", range(LAYERS))
def test_lagkv(run, layer):
    press = kvpress.LagKVPress(n_sink=4, lag_size=64, cross_scoring=True)
    other, mine = theirs(press, run, layer), ours("lagkv", run, layer, sinks=4, lag=64)
    scored = slice(4, 4 + (N - 4) // 64 * 64 - 64)
    assert_close(mine[:, scored], other[:, scored])
    # What is pinned has score 1 there, and there are ties; here recency and infinity.
    pinned = torch.ones(N, dtype=torch.bool)
    pinned[scored] = False
    assert bool((other[:, pinned] == 1).all())
    assert bool((mine[:, pinned] > mine[:, scored].amax()).all())


@pytest.mark.parametrize("layer", range(LAYERS))
def test_lagkv_ranks_inside_partitions_by_default(run, layer):
    """Their default replaces a score by its rank in the partition: the same order there."""
    other = theirs(kvpress.LagKVPress(n_sink=4, lag_size=64), run, layer)
    mine = ours("lagkv", run, layer, sinks=4, lag=64)
    for start in range(4, 4 + (N - 4) // 64 * 64 - 64, 64):
        part = slice(start, start + 64)
        assert torch.equal(mine[:, part].argsort(-1).argsort(-1) / 64, other[:, part])


@pytest.mark.parametrize("layer", range(LAYERS))
def test_keydiff(run, layer):
    assert_close(ours("keydiff", run, layer), theirs(kvpress.KeyDiffPress(), run, layer))


@pytest.mark.parametrize("layer", range(LAYERS))
def test_knorm(run, layer):
    assert_close(ours("knorm", run, layer), theirs(kvpress.KnormPress(), run, layer))


def test_streaming_llm(run):
    """Theirs scores 0 and 1 for a ratio, ours by recency: the same entries are kept."""
    for ratio in (0.25, 0.5, 0.9):
        press = kvpress.StreamingLLMPress(compression_ratio=ratio, n_sink=4)
        other = theirs(press, run, 0)
        kept = int(other[0].sum())
        best = ours("streaming_llm", run, 0).argsort(-1, descending=True)[:, :kept]
        assert torch.equal(torch.zeros_like(other).scatter(1, best, 1.0), other)


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("covariance", [True, False])
@pytest.mark.parametrize("value_norm", [True, False])
def test_expected_attention(run, layer, covariance, value_norm):
    press = kvpress.ExpectedAttentionPress(
        n_future_positions=512, n_sink=4, use_covariance=covariance, use_vnorm=value_norm,
        epsilon=0.02 if value_norm else 0.0,
    )  # fmt: skip
    mine = ours(
        "expected_attention", run, layer, covariance=covariance, value_norm=value_norm,
        epsilon=press.epsilon,
    )  # fmt: skip
    assert_close(mine[:, 4:], theirs(press, run, layer)[:, 4:])
    assert bool((mine[:, :4] == torch.inf).all())


def test_pyramid_budgets(run):
    """The same arithmetic sequence, but for rounding and their window, which comes on top."""
    layers, budget, window, beta = 12, 100, 8, 20
    press = kvpress.PyramidKVPress(compression_ratio=0.75, window_size=window, beta=beta)
    module = SimpleNamespace(
        config=SimpleNamespace(num_hidden_layers=layers), layer_idx=0, head_dim=8
    )
    found = []
    for i in range(layers):
        module.layer_idx = i
        found.append(press.get_layer_budget(module, 400))
    mine = allocate("pyramid", torch.zeros(layers, 1, 1, 400), budget, sinks=0, recent=0, beta=beta)
    steps = torch.tensor(found).float().diff()
    assert bool((steps <= 0).all())
    assert float(steps.std()) < 2  # theirs too falls in equal steps
    assert bool((mine.flatten().diff() <= 0).all())
    assert abs(sum(found) / layers - budget) < 0.15 * budget


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("safeguard", [0.0, 0.2, 0.6])
def test_adakv_budgets(run, layer, safeguard):
    """Theirs is a floor under plain competition, as ours with safeguard=0 and that floor."""
    scorer = kvpress.KeyDiffPress(compression_ratio=0.75)
    press = kvpress.AdaKVPress(scorer, alpha_safeguard=safeguard)
    module = run.model.model.layers[layer].self_attn
    run.model.config._attn_implementation = "sdpa"  # it refuses eager, which it could not mask
    press.compress(module, run.hidden[layer], run.k[layer][None], run.v[layer][None], None, {})
    run.model.config._attn_implementation = "eager"
    _, heads, _ = module.masked_key_indices
    count = run.k.shape[1]
    other = N - torch.bincount(heads, minlength=count)
    module.masked_key_indices = None
    budget = int(N * 0.25)
    scores = ours("keydiff", run, layer)[None, None]
    mine = allocate(
        "adakv", scores, budget, sinks=0, recent=0, floor=int(budget * safeguard), safeguard=0.0
    )
    # Every head keeps at least one entry here, whatever its scores.
    if int(other.min()) >= 1:
        assert torch.equal(mine[0, 0], other)
