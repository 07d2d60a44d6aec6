"""The folded policy: the form of an agent that kernels evaluate, equal in real arithmetic.

Write C = I - 11'/n for centring, so LayerNorm(y) = g * C y / sqrt(|C y|^2 / n + eps) + b.

1. Branch of the paper's agent, y = W k + c of width n, feeding the slice W1 of the first MLP layer:

       W1 LayerNorm(W k + c) = gain (M k + m) + W1 b,   M = W1 diag(g) C W,  m = W1 diag(g) C c

   Two matrices become one [hidden, D] matrix. The gain is 1 / sqrt(|C (W k + c)|^2 / n + eps).
   With the QR decomposition [C W | C c] / sqrt(n) = Q R, the square is |R [k; 1]|^2: D rows
   |R_kk k + r_k|^2 plus the square of the last row, a constant that joins eps in the offset.
   (When n <= D, R has n rows and no constant one; absent rows are zero.)
2. Hidden LayerNorms: C folds into the rows of the layer before, so z has mean 0 and the norm needs
   a mean square only. Its weight and bias precede the SiLU and stay.
3. The position branch reads a table, so its LayerNorm folds into the table's rows.
4. Standardisation folds into the layer that reads k or v: W (k - mean) / std =
   (W / std) k - (W / std) mean.

The result, with p = positions[min(pos, rows - 1)]:

    gain_k = 1 / sqrt(|G_k k + g_k|^2 + c_k)   (1 without gains; likewise gain_v)
    z1     = W1 [gain_k k; gain_v v; p] + gain_k m_k + gain_v m_v + b1
    score  = w3 . silu(norm2(W2 silu(norm1(z1)) + b2)) + b3
    norm(z) = z / sqrt(mean(z^2) + eps) * weight + bias   (z without norms)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .agents import Agent, PaperAgent, SmallAgent
from .positions import layer_positions, smooth_position_features


def folded_tensor_shapes(
    head_dim_k: int, head_dim_v: int, hidden: int, position_dim: int, *, gains: bool, norms: bool
) -> dict[str, tuple[int, ...]]:
    """Shape of each folded tensor of one (layer, head), in the order of the packed layout."""
    shapes: dict[str, tuple[int, ...]] = {}
    if gains:
        for branch, dim in (("k", head_dim_k), ("v", head_dim_v)):
            shapes[f"gain_{branch}.weight"] = (dim, dim)
            shapes[f"gain_{branch}.bias"] = (dim,)
            shapes[f"gain_{branch}.offset"] = (1,)
    shapes["input.weight"] = (hidden, head_dim_k + head_dim_v + position_dim)
    shapes["input.bias"] = (hidden,)
    if gains:
        shapes["input.gain_k"] = (hidden,)
        shapes["input.gain_v"] = (hidden,)
    if norms:
        shapes["norm1.weight"] = (hidden,)
        shapes["norm1.bias"] = (hidden,)
    shapes["hidden.weight"] = (hidden, hidden)
    shapes["hidden.bias"] = (hidden,)
    if norms:
        shapes["norm2.weight"] = (hidden,)
        shapes["norm2.bias"] = (hidden,)
    shapes["output.weight"] = (hidden,)
    shapes["output.bias"] = (1,)
    return shapes


@dataclass
class FoldedPolicy:
    """A folded policy for all (layer, head) pairs.

    Attributes:
        layers, kv_heads, head_dim_k, head_dim_v, hidden, position_dim: geometry.
        position_rows: longest trained position + 1.
        gains: whether the k and v inputs carry a gain (the paper's branches).
        norms: whether the hidden layers are normalised.
        norm_eps: of the hidden norms.
        tensors: name -> [layers, kv_heads, *shape], names, order and shapes as
            ``folded_tensor_shapes`` gives.
        positions: [position_rows, position_dim] shared by all heads, or
            [layers, kv_heads, position_rows, position_dim].

    Raises:
        ValueError: a tensor that is missing, unexpected or of another shape.
    """

    layers: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    hidden: int
    position_dim: int
    position_rows: int
    gains: bool
    norms: bool
    norm_eps: float
    tensors: dict[str, Tensor]
    positions: Tensor

    def __post_init__(self) -> None:
        """Check the names and shapes of the tensors."""
        grid = (self.layers, self.kv_heads)
        shapes = self.shapes
        if list(self.tensors) != list(shapes):
            raise ValueError(f"tensors: got {list(self.tensors)}, expected {list(shapes)}")
        for name, shape in shapes.items():
            got = tuple(self.tensors[name].shape)
            if got != grid + shape:
                raise ValueError(f"tensors[{name!r}]: got shape {got}, expected {grid + shape}")
        rows = (self.position_rows, self.position_dim)
        if tuple(self.positions.shape) not in (rows, grid + rows):
            got = tuple(self.positions.shape)
            raise ValueError(f"positions: got shape {got}, expected {rows} or {grid + rows}")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """``folded_tensor_shapes`` of this policy."""
        return folded_tensor_shapes(
            self.head_dim_k,
            self.head_dim_v,
            self.hidden,
            self.position_dim,
            gains=self.gains,
            norms=self.norms,
        )

    @property
    def shared_positions(self) -> bool:
        """Whether one position table serves all heads."""
        return self.positions.dim() == 2


@torch.no_grad()
def fold(agent: Agent, dtype: torch.dtype = torch.float32) -> FoldedPolicy:
    """Fold an agent. Computed in float64 and stored in ``dtype``.

    Raises:
        ValueError: the agent's scores depend on the length of the cache.
    """
    if agent.length_aware:
        raise ValueError(
            "agent: its inputs include the age of an entry, expected features of k, v and pos "
            "alone, so that scores stay what they are as the cache grows"
        )
    if isinstance(agent, PaperAgent):
        tensors, positions = _fold_paper(copy.deepcopy(agent).double())
        norms, norm_eps = True, agent.norm_eps
    elif isinstance(agent, SmallAgent):
        tensors, positions = _fold_small(copy.deepcopy(agent).double())
        norms, norm_eps = False, 0.0
    else:
        raise TypeError(f"agent: got {type(agent).__name__}, expected PaperAgent or SmallAgent")
    shapes = folded_tensor_shapes(
        agent.head_dim_k,
        agent.head_dim_v,
        agent.hidden_size,
        agent.position_dim,
        gains=norms,
        norms=norms,
    )
    return FoldedPolicy(
        layers=agent.layers,
        kv_heads=agent.kv_heads,
        head_dim_k=agent.head_dim_k,
        head_dim_v=agent.head_dim_v,
        hidden=agent.hidden_size,
        position_dim=agent.position_dim,
        position_rows=agent.position_rows,
        gains=norms,
        norms=norms,
        norm_eps=norm_eps,
        tensors={name: tensors[name].to(dtype).contiguous() for name in shapes},
        positions=positions.to(dtype).contiguous(),
    )


def _fold_paper(agent: PaperAgent) -> tuple[dict[str, Tensor], Tensor]:
    w: dict[str, Tensor] = dict(agent.named_parameters())
    widths = [w["k_proj.weight"].shape[-2], w["v_proj.weight"].shape[-2], agent.position_dim]
    w1_k, w1_v, w1_p = torch.split(w["input.weight"], widths, dim=-1)
    b1 = w["input.bias"]

    tensors: dict[str, Tensor] = {}
    maps, shifts = [], {}
    for branch, w1 in (("k", w1_k), ("v", w1_v)):
        weight, bias = map(centred, agent.branch(branch))
        gain_weight, gain_bias, constant = branch_gain(weight, bias)
        tensors[f"gain_{branch}.weight"] = gain_weight
        tensors[f"gain_{branch}.bias"] = gain_bias
        tensors[f"gain_{branch}.offset"] = constant[..., None] + agent.norm_eps
        scaled = w1 * w[f"{branch}_norm.weight"][..., None, :]
        maps.append(scaled @ weight)
        shifts[branch] = torch.einsum("lhon,lhn->lho", scaled, bias)
        b1 = b1 + torch.einsum("lhon,lhn->lho", w1, w[f"{branch}_norm.bias"])

    tensors["input.weight"] = centred(torch.cat([*maps, w1_p], dim=-1))
    tensors["input.bias"] = centred(b1)
    tensors["input.gain_k"] = centred(shifts["k"])
    tensors["input.gain_v"] = centred(shifts["v"])
    tensors["hidden.weight"] = centred(w["hidden.weight"])
    tensors["hidden.bias"] = centred(w["hidden.bias"])
    for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "output.bias"):
        tensors[name] = w[name]
    tensors["output.weight"] = w["output.weight"].squeeze(-2)
    return tensors, _position_table(agent)


def _fold_small(agent: SmallAgent) -> tuple[dict[str, Tensor], Tensor]:
    w: dict[str, Tensor] = dict(agent.named_parameters())
    weight, bias = agent.first_layer()
    tensors = {
        "input.weight": weight,
        "input.bias": bias,
        "hidden.weight": w["hidden.weight"],
        "hidden.bias": w["hidden.bias"],
        "output.weight": w["output.weight"].squeeze(-2),
        "output.bias": w["output.bias"],
    }
    return tensors, _position_table(agent)


def _position_table(agent: Agent) -> Tensor:
    """Features of positions 0 .. position_rows - 1 in float64."""
    rows = agent.position_rows
    if agent.position == "smooth":
        device = next(agent.parameters()).device
        pos = torch.arange(rows, device=device)
        return smooth_position_features(pos, agent.position_dim, torch.float64)
    assert isinstance(agent, PaperAgent | SmallAgent)
    table = agent.pos_embedding.weight[:, :, :rows]
    if isinstance(agent, PaperAgent):
        table = F.layer_norm(table, table.shape[-1:], eps=agent.norm_eps)
        norm = agent.pos_norm
        table = table * norm.weight[:, :, None] + norm.bias[:, :, None]
    return table


def centred(x: Tensor) -> Tensor:
    """C x: subtract the mean over the output dimension of x [L, H, out, in] or [L, H, out]."""
    return x - x.mean(dim=2, keepdim=True)


def branch_gain(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """G, g, c with |G k + g|^2 + c = |W k + b|^2 / n for W [L, H, n, D], b [L, H, n]."""
    width, dim = weight.shape[-2:]
    extended = torch.cat([weight, bias[..., None]], dim=-1) / width**0.5
    r = torch.linalg.qr(extended, mode="r").R
    r = F.pad(r, (0, 0, 0, dim + 1 - r.shape[-2]))
    return r[..., :dim, :dim], r[..., :dim, dim], r[..., dim, dim] ** 2


@torch.no_grad()
def score(
    policy: FoldedPolicy,
    k: Tensor | Sequence[Tensor | None],
    v: Tensor | Sequence[Tensor | None],
    pos: Tensor | Sequence[Tensor | None],
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Score every entry with a folded policy.

    Args:
        policy: whose geometry fits the cache.
        k, v: [L, B, H, T, Dk] and [L, B, H, T, Dv], or L tensors [B, H, T, D] whose T may differ;
            a None layer is skipped.
        pos: integers [T], [B, T] or [L, B, H, T] with the largest T, or L tensors [B, H, T].
        dtype: to compute in and return; by default float32, or float64 for a float64 cache.

    Returns:
        [L, B, H, T] with the largest T of any layer; NaN at negative positions, in slots that a
        layer does not have, and in skipped layers.
    """
    if len(k) != policy.layers or len(v) != policy.layers:
        raise ValueError(f"k, v: got {len(k)} and {len(v)} layers, expected {policy.layers}")
    first = next((x for x in k if x is not None), None)
    if first is None:
        raise ValueError("k: got no layer, expected at least one that is not None")
    batch, heads = first.shape[:2]
    slots = max(x.shape[2] for x in k if x is not None)
    if dtype is None:
        dtype = torch.promote_types(first.dtype, torch.float32)
    scores = first.new_full((policy.layers, batch, heads, slots), torch.nan, dtype=dtype)
    for layer in range(policy.layers):
        k_l, v_l = k[layer], v[layer]
        if k_l is None or v_l is None:
            continue
        expected = (batch, policy.kv_heads, k_l.shape[2])
        for name, x, dim in (("k", k_l, policy.head_dim_k), ("v", v_l, policy.head_dim_v)):
            if tuple(x.shape) != (*expected, dim):
                raise ValueError(
                    f"{name}[{layer}]: got shape {tuple(x.shape)}, expected {(*expected, dim)}"
                )
        pos_l = layer_positions(pos, layer, *expected)
        result = _score_layer(policy, layer, k_l.to(dtype), v_l.to(dtype), pos_l)
        scores[layer, ..., : k_l.shape[2]] = result.masked_fill(pos_l < 0, torch.nan)
    return scores


def _score_layer(policy: FoldedPolicy, layer: int, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
    """Scores [B, H, T] of k [B, H, T, Dk], v [B, H, T, Dv], pos [B, H, T]."""
    w = {name: t[layer].to(k.device, k.dtype) for name, t in policy.tensors.items()}

    def affine(name: str, x: Tensor) -> Tensor:
        y = torch.einsum("hoi,bhti->bhto", w[f"{name}.weight"], x)
        return y + w[f"{name}.bias"][:, None, :]

    def norm(name: str, z: Tensor) -> Tensor:
        if not policy.norms:
            return z
        z = z * torch.rsqrt(z.square().mean(dim=-1, keepdim=True) + policy.norm_eps)
        return z * w[f"{name}.weight"][:, None, :] + w[f"{name}.bias"][:, None, :]

    p = _position_features(policy, layer, pos).to(k.device, k.dtype)
    shift: Tensor | float = 0.0
    if policy.gains:
        gain = {}
        for name, x in (("k", k), ("v", v)):
            square = affine(f"gain_{name}", x).square().sum(dim=-1, keepdim=True)
            gain[name] = torch.rsqrt(square + w[f"gain_{name}.offset"][:, None, :])
            shift = shift + gain[name] * w[f"input.gain_{name}"][:, None, :]
        k, v = gain["k"] * k, gain["v"] * v
    z_1 = affine("input", torch.cat([k, v, p], dim=-1)) + shift
    h_1 = F.silu(norm("norm1", z_1))
    h_2 = F.silu(norm("norm2", affine("hidden", h_1)))
    return torch.einsum("ho,bhto->bht", w["output.weight"], h_2) + w["output.bias"]


def _position_features(policy: FoldedPolicy, layer: int, pos: Tensor) -> Tensor:
    """Rows [B, H, T, F] of the position table, clamped to its ends."""
    row = pos.clamp(0, policy.position_rows - 1).to(policy.positions.device)
    if policy.shared_positions:
        return policy.positions[row]
    head = torch.arange(policy.kv_heads, device=row.device)[None, :, None]
    return policy.positions[layer][head, row]
