"""The folded policy equals the agent it was folded from, in real arithmetic."""

import pytest
import torch

from python_ref.agents import PaperAgent, SmallAgent
from python_ref.fold import FoldedPolicy, fold, folded_tensor_shapes, score

LAYERS, HEADS, BATCH, SLOTS = 2, 3, 2, 37


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def randomised(agent):
    """The agent in float64 with every parameter and buffer away from its trivial init."""
    agent = agent.double()
    g = seeded(1)
    with torch.no_grad():
        for name, p in [*agent.named_parameters(), *agent.named_buffers()]:
            noise = torch.randn(p.shape, generator=g, dtype=p.dtype)
            p.add_(0.3 * noise)
            if name.endswith("_std"):
                p.abs_().add_(0.1)
    return agent


def cache(dim_k, dim_v, dtype=torch.float64):
    g = seeded(2)
    k = 3 * torch.randn(LAYERS, BATCH, HEADS, SLOTS, dim_k, generator=g, dtype=torch.float64) + 1
    v = torch.randn(LAYERS, BATCH, HEADS, SLOTS, dim_v, generator=g, dtype=torch.float64)
    pos = torch.randint(0, 60, (LAYERS, BATCH, HEADS, SLOTS), generator=g)
    return k.to(dtype), v.to(dtype), pos


AGENTS = {
    "paper": lambda dk, dv: PaperAgent(LAYERS, HEADS, dk, dv, position_rows=40, generator=seeded()),
    "paper-smooth": lambda dk, dv: PaperAgent(
        LAYERS, HEADS, dk, dv, position="smooth", position_rows=40, generator=seeded()
    ),
    "paper-narrow": lambda dk, dv: PaperAgent(
        LAYERS, HEADS, dk, dv, hidden=48, branch_k=24, branch_v=40, position_rows=40,
        generator=seeded(),
    ),
    "small": lambda dk, dv: SmallAgent(LAYERS, HEADS, dk, dv, position_rows=40, generator=seeded()),
    "small-keys": lambda dk, dv: SmallAgent(
        LAYERS, HEADS, dk, dv, inputs="k+pos", position_rows=40, generator=seeded()
    ),
    "small-table": lambda dk, dv: SmallAgent(
        LAYERS, HEADS, dk, dv, position="table", position_rows=40, generator=seeded()
    ),
}  # fmt: skip


@pytest.mark.parametrize("dims", [(16, 16), (24, 40), (256, 256), (192, 128)])
@pytest.mark.parametrize("name", AGENTS)
def test_folded_equals_agent(name, dims):
    agent = randomised(AGENTS[name](*dims))
    k, v, pos = cache(*dims)
    expected = agent(k, v, pos).detach()
    assert expected.std() > 1e-3
    actual = score(fold(agent, torch.float64), k, v, pos)
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("name", AGENTS)
def test_float32_folding_is_close(name):
    agent = randomised(AGENTS[name](64, 64))
    k, v, pos = cache(64, 64, torch.float32)
    expected = agent(k.double(), v.double(), pos).detach()
    actual = score(fold(agent), k, v, pos)
    assert actual.dtype == torch.float32
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error < 1e-4


def test_scores_that_depend_on_the_length_are_refused():
    with pytest.raises(ValueError, match="agent: its inputs include the age"):
        fold(SmallAgent(LAYERS, HEADS, 8, inputs="k+v+pos+age"))


def test_shapes_are_in_packing_order():
    names = list(folded_tensor_shapes(8, 6, 16, 4, gains=True, norms=True))
    assert names == [
        "gain_k.weight", "gain_k.bias", "gain_k.offset",
        "gain_v.weight", "gain_v.bias", "gain_v.offset",
        "input.weight", "input.bias", "input.gain_k", "input.gain_v",
        "norm1.weight", "norm1.bias", "hidden.weight", "hidden.bias",
        "norm2.weight", "norm2.bias", "output.weight", "output.bias",
    ]  # fmt: skip
    small = folded_tensor_shapes(8, 6, 16, 4, gains=False, norms=False)
    assert small == {
        "input.weight": (16, 18),
        "input.bias": (16,),
        "hidden.weight": (16, 16),
        "hidden.bias": (16,),
        "output.weight": (16,),
        "output.bias": (1,),
    }


def test_positions_are_shared_only_where_they_can_be():
    assert fold(AGENTS["small"](8, 8)).shared_positions
    assert fold(AGENTS["paper-smooth"](8, 8)).shared_positions
    assert fold(AGENTS["paper"](8, 8)).positions.shape == (LAYERS, HEADS, 40, 32)


@pytest.mark.parametrize("name", ["paper", "small"])
def test_lowered_longest_position_clamps_agent_and_fold(name):
    agent = randomised(AGENTS[name](16, 16))
    k, v, pos = cache(16, 16)
    before = agent(k, v, pos)
    agent.position_rows = 10
    after = agent(k, v, pos)
    low = pos <= 9
    assert torch.equal(before[low], after[low])
    assert not torch.allclose(before[~low], after[~low])
    folded = fold(agent, torch.float64)
    assert folded.positions.shape[-2] == 10
    torch.testing.assert_close(score(folded, k, v, pos), after.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["paper", "small"])
def test_position_shapes_agree(name):
    agent = randomised(AGENTS[name](8, 8))
    k, v, _ = cache(8, 8)
    folded = fold(agent, torch.float64)
    pos = torch.randint(0, 60, (BATCH, SLOTS), generator=seeded(3))
    full = pos[None, :, None].expand(LAYERS, BATCH, HEADS, SLOTS)
    assert torch.equal(score(folded, k, v, pos), score(folded, k, v, full))
    assert torch.equal(agent(k, v, pos), agent(k, v, full))
    shared = score(folded, k, v, pos[0])
    assert torch.equal(shared[:, 0], score(folded, k, v, pos)[:, 0])


def test_padding_missing_layers_and_ragged_layers_score_nan():
    folded = fold(randomised(AGENTS["small"](8, 8)))
    k, v, pos = cache(8, 8)
    pos[..., :5] = -1
    whole = score(folded, k, v, pos)
    assert whole[..., :5].isnan().all()
    assert whole[..., 5:].isfinite().all()
    ragged = score(folded, [None, k[1, ..., :20, :]], [None, v[1, ..., :20, :]], pos)
    assert ragged.shape == (LAYERS, BATCH, HEADS, 20)
    assert ragged[0].isnan().all()
    assert torch.equal(ragged[1, ..., 5:], whole[1, ..., 5:20])
    long = score(folded, [k[0], k[1, ..., :20, :]], [v[0], v[1, ..., :20, :]], pos)
    assert long[1, ..., 20:].isnan().all()
    assert torch.equal(long[0, ..., 5:], whole[0, ..., 5:])


def test_half_precision_caches_compute_in_float32():
    folded = fold(AGENTS["paper"](8, 8))
    k, v, pos = cache(8, 8, torch.bfloat16)
    actual = score(folded, k, v, pos)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, score(folded, k.float(), v.float(), pos))


def test_a_policy_that_does_not_fit_is_refused():
    folded = fold(AGENTS["small"](8, 8))
    k, v, pos = cache(8, 8)
    with pytest.raises(ValueError, match=r"k, v: got 1 and 1 layers, expected 2"):
        score(folded, k[:1], v[:1], pos)
    with pytest.raises(ValueError, match=r"v\[0\]: got shape \(2, 3, 37, 7\)"):
        score(folded, k, v[..., :7], pos)
    tensors = dict(folded.tensors)
    tensors["output.bias"] = torch.zeros(LAYERS, HEADS, 2)
    fields = {**folded.__dict__, "tensors": tensors}
    with pytest.raises(ValueError, match=r"tensors\['output.bias'\]: got shape \(2, 3, 2\)"):
        FoldedPolicy(**fields)
