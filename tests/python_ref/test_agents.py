"""The architectures, written out for one head at a time with PyTorch's own layers."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from python_ref.agents import PaperAgent, SmallAgent
from python_ref.positions import smooth_position_features

LAYERS, HEADS, BATCH, SLOTS, ROWS = 2, 3, 2, 9, 20


class OneHead(nn.Module):
    """The paper's agent for one (layer, head), from stock modules."""

    def __init__(self, dim_k, dim_v, width=256, hidden=256):
        super().__init__()
        self.k_proj, self.k_norm = nn.Linear(dim_k, width), nn.LayerNorm(width)
        self.v_proj, self.v_norm = nn.Linear(dim_v, width), nn.LayerNorm(width)
        self.pos_embedding, self.pos_norm = nn.Embedding(ROWS, 32), nn.LayerNorm(32)
        self.mlp = nn.Sequential(
            nn.Linear(2 * width + 32, hidden),
            nn.LayerNorm(hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
        )
        for p in self.parameters():
            p.data += 0.1 * torch.randn_like(p)

    def forward(self, k, v, pos):
        e_k, e_v = self.k_norm(self.k_proj(k)), self.v_norm(self.v_proj(v))
        e_p = self.pos_norm(self.pos_embedding(pos.clamp(max=ROWS - 1)))
        return self.mlp(torch.cat([e_k, e_v, e_p], dim=-1)).squeeze(-1)


def released(dim_k=8, dim_v=6):
    torch.manual_seed(0)
    return [[OneHead(dim_k, dim_v).double() for _ in range(HEADS)] for _ in range(LAYERS)]


def states(heads):
    return [[head.state_dict() for head in row] for row in heads]


def cache(dim_k=8, dim_v=6):
    g = torch.Generator().manual_seed(0)
    k = torch.randn(LAYERS, BATCH, HEADS, SLOTS, dim_k, generator=g, dtype=torch.float64)
    v = torch.randn(LAYERS, BATCH, HEADS, SLOTS, dim_v, generator=g, dtype=torch.float64)
    pos = torch.randint(0, 2 * ROWS, (LAYERS, BATCH, HEADS, SLOTS), generator=g)
    return k, v, pos


def test_released_agents_score_as_they_did():
    heads = released()
    agent = PaperAgent.from_released(states(heads)).double()
    assert (agent.head_dim_k, agent.head_dim_v, agent.position_rows) == (8, 6, ROWS)
    k, v, pos = cache()
    actual = agent(k, v, pos)
    for layer in range(LAYERS):
        for head in range(HEADS):
            expected = heads[layer][head](k[layer, :, head], v[layer, :, head], pos[layer, :, head])
            # from_released stores float32.
            torch.testing.assert_close(actual[layer, :, head], expected, rtol=1e-5, atol=1e-5)


def test_paper_agent_size():
    agent = PaperAgent(1, 1, 128)
    assert sum(p.numel() for p in agent.parameters()) == 657_729
    smooth = PaperAgent(1, 1, 128, position="smooth")
    assert sum(p.numel() for p in smooth.parameters()) == 273_729 - 64


def test_released_names_that_differ_are_mapped():
    renamed = [
        [{k.replace("k_proj", "key_encoder.0"): t for k, t in s.items()} for s in row]
        for row in states(released())
    ]
    with pytest.raises(ValueError, match=r"missing.*k_proj.weight.*unexpected.*key_encoder.0.bias"):
        PaperAgent.from_released(renamed)
    keys = {"k_proj.weight": "key_encoder.0.weight", "k_proj.bias": "key_encoder.0.bias"}
    agent = PaperAgent.from_released(renamed, keys=keys, position_rows=7)
    assert agent.position_rows == 7
    assert torch.equal(agent.k_proj.weight[1, 2], renamed[1][2]["key_encoder.0.weight"].float())
    with pytest.raises(ValueError, match="keys: got unknown names"):
        PaperAgent.from_released(renamed, keys={"key.weight": "x"})


def test_released_shapes_that_do_not_fit_are_listed():
    broken = states(released())
    broken[1][0]["mlp.6.weight"] = torch.zeros(1, 7)
    with pytest.raises(ValueError, match=r"state_dicts\[1\]\[0\]\['mlp.6.weight'\]: got shape"):
        PaperAgent.from_released(broken)
    for row in broken:
        for state in row:
            state["mlp.6.weight"] = torch.zeros(1, 7)
    with pytest.raises(ValueError, match=r"mlp.6.weight: \[1, 7\]"):
        PaperAgent.from_released(broken)
    with pytest.raises(ValueError, match="position_rows: got 21, expected 1 to 20"):
        PaperAgent.from_released(states(released()), position_rows=21)
    with pytest.raises(ValueError, match=r"state_dicts: got \[3, 2\] agents per layer"):
        PaperAgent.from_released([broken[0], broken[1][:2]])


def test_small_agent_by_hand():
    agent = SmallAgent(LAYERS, HEADS, 8, 6, position_rows=ROWS).double()
    k, v, pos = cache()
    agent.fit_standardisation(k * 5 + 2, v)
    actual = agent(k * 5 + 2, v, pos)
    w = agent.state_dict()
    for i in range(LAYERS):
        for h in range(HEADS):
            x_k, x_v = k[i, :, h].reshape(-1, 8), v[i, :, h].reshape(-1, 6)
            x_k = (x_k - x_k.mean(0)) / x_k.std(0, correction=0)
            x_v = (x_v - x_v.mean(0)) / x_v.std(0, correction=0)
            x_p = smooth_position_features(pos[i, :, h].flatten().clamp(max=ROWS - 1), 8)
            x = torch.cat([x_k, x_v, x_p.double()], dim=-1)
            for name in ("input", "hidden"):
                x = F.silu(F.linear(x, w[f"{name}.weight"][i, h], w[f"{name}.bias"][i, h]))
            expected = F.linear(x, w["output.weight"][i, h], w["output.bias"][i, h])
            torch.testing.assert_close(
                actual[i, :, h].flatten(), expected.squeeze(-1), rtol=1e-6, atol=1e-6
            )


@pytest.mark.parametrize("left_out", ["k", "v", "pos", "age"])
def test_inputs_that_are_left_out_do_not_matter(left_out):
    inputs = [name for name in ("k", "v", "pos", "age") if name != left_out]
    agent = SmallAgent(LAYERS, HEADS, 8, 6, position_rows=ROWS, inputs="+".join(inputs))
    k, v, pos = (x.float() if x.is_floating_point() else x for x in cache())
    given = {"k": k, "v": v, "pos": pos, "age": pos + 3}

    def score(changed=None):
        x = given | ({changed: given[changed] + 1} if changed else {})
        return agent(x["k"], x["v"], x["pos"], x["pos"] + x["age"])

    for name in given:
        assert torch.equal(score(name), score()) == (name == left_out), name


def test_the_age_is_a_smooth_feature_of_the_length_minus_the_position():
    agent = SmallAgent(1, 1, 4, position_rows=ROWS, inputs="age")
    k = torch.zeros(1, 1, 1, 5, 4)
    at_9 = agent(k, k, torch.arange(5), 9)
    assert torch.equal(at_9, agent(k, k, torch.arange(2, 7), 11))
    assert torch.equal(at_9[..., 2:], agent(k, k, torch.arange(5), torch.full((5,), 7))[..., :3])
    w = agent.state_dict()
    x = smooth_position_features(torch.tensor(9), 8)
    hidden = F.silu(w["input.weight"][0, 0, :, -8:] @ x + w["input.bias"][0, 0])
    hidden = F.silu(w["hidden.weight"][0, 0] @ hidden + w["hidden.bias"][0, 0])
    expected = w["output.weight"][0, 0] @ hidden + w["output.bias"][0, 0]
    torch.testing.assert_close(at_9[0, 0, 0, 0], expected[0])
    with pytest.raises(ValueError, match="length: got None"):
        agent(k, k, torch.arange(5))


def test_constant_channels_standardise_to_zero():
    agent = SmallAgent(1, 1, 4)
    k = torch.randn(1, 1, 1, 50, 4)
    k[..., 2] = 7.0
    agent.fit_standardisation(k, k)
    assert agent.k_std[0, 0, 2] == 1
    assert agent.k_mean[0, 0, 2] == 7
    assert agent(k, k, torch.arange(50)).isfinite().all()


@pytest.mark.parametrize("family", [PaperAgent, SmallAgent])
def test_a_seed_reproduces_an_agent(family):
    def make(seed):
        return family(2, 2, 8, generator=torch.Generator().manual_seed(seed)).state_dict()

    first, again, other = make(0), make(0), make(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["input.weight"], other["input.weight"])
    assert not torch.equal(first["input.weight"][0, 0], first["input.weight"][1, 1])
    bound = first["hidden.weight"].shape[-1] ** -0.5
    assert 0.95 * bound < float(first["hidden.weight"].abs().max()) <= bound


@pytest.mark.parametrize("family", [PaperAgent, SmallAgent])
def test_heads_do_not_share_and_all_parameters_learn(family):
    agent = family(2, 2, 4, position_rows=4)
    k = torch.randn(2, 1, 2, 8, 4)
    agent(k, k, torch.arange(8))[0, :, 1].sum().backward()
    for name, p in agent.named_parameters():
        assert p.shape[:2] == (2, 2), name
        assert p.grad is not None, name
        assert p.grad[0, 1].abs().sum() > 0, name
        assert p.grad[1].abs().sum() == 0, name
        assert p.grad[0, 0].abs().sum() == 0, name


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="position: got 'age'"):
        SmallAgent(1, 1, 4, position="age")
    for inputs in ("k+q", "k+k", ""):
        with pytest.raises(
            ValueError, match=rf"inputs: got '{re.escape(inputs)}', expected some of"
        ):
            SmallAgent(1, 1, 4, inputs=inputs)
    with pytest.raises(ValueError, match="kv_heads: got 0"):
        SmallAgent(1, 0, 4)
    agent = SmallAgent(1, 2, 4)
    k = torch.zeros(1, 1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"k, v: got \[L, H, Dk, Dv\] = \[1, 2, 4, 3\]"):
        agent(k, k[..., :3], torch.arange(5))
    with pytest.raises(ValueError, match=r"pos: got shape \(4,\)"):
        agent(k, k, torch.arange(4))


def test_position_features_are_bounded_smooth_and_distinct():
    pos = torch.cat([torch.arange(0, 200), torch.arange(200, 131_073, 97)])
    features = smooth_position_features(pos, 8, torch.float64)
    assert features.shape == (len(pos), 8)
    assert features.min() == -1
    assert features.max() < 1
    assert (features.diff(dim=0) > 0).all()
    # Halfway at the feature's own scale, and everywhere some feature still tells a doubling.
    assert features[pos == 1, 0] == 0
    assert abs(float(smooth_position_features(torch.tensor(131_072), 8)[7])) < 1e-6
    for p in (1, 30, 1_000, 20_000, 65_536):
        near, far = smooth_position_features(torch.tensor([p, 2 * p]), 8)
        assert (far - near).max() > 0.25
    assert torch.equal(
        smooth_position_features(torch.tensor([-1]), 4),
        smooth_position_features(torch.tensor([0]), 4),
    )
    with pytest.raises(ValueError, match="dim: got 1"):
        smooth_position_features(pos, 1)
