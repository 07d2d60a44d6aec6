"""The policies: one small network per (layer, KV head) that scores a cache entry.

``PaperAgent`` is the architecture of "Learning to Evict from Key-Value Cache" (arXiv 2602.10238);
``SmallAgent`` is a family about twenty times cheaper. No weight is shared between heads, so every
parameter leads with [layers, kv_heads] and all heads are evaluated by one batched matmul.

A higher score is kept. A score depends on the entry's key, value and position alone, so that it
stays what it is as the cache grows; only a ``SmallAgent`` whose inputs include the age also looks
at the length of the cache, for comparison: such an agent cannot be folded into a policy file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .positions import expand_positions, smooth_position_features

POSITION_KINDS = ("table", "smooth")
INPUTS = ("k", "v", "pos", "age")


class HeadLinear(nn.Module):
    """y = W x + b with one W [out, in] and b [out] per (layer, head); PyTorch's Linear init."""

    def __init__(
        self, layers: int, heads: int, inputs: int, outputs: int, generator: torch.Generator | None
    ) -> None:
        """Draw W and b uniformly from +-1/sqrt(inputs)."""
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(layers, heads, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(layers, heads, outputs))
        with torch.no_grad():
            self.weight.uniform_(-bound, bound, generator=generator)
            self.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [L, B, H, T, in] to [L, B, H, T, out]."""
        return affine(x, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W x + b of every head, one batched matmul.

    x [L, B, H, T, in], weight [L, H, out, in] and bias [L, H, out] give [L, B, H, T, out]. With
    one sequence (B = 1) nothing is copied, whatever the strides.
    """
    layers, batch, heads, slots, inputs = x.shape
    rows = x.transpose(1, 2).reshape(layers * heads, batch * slots, inputs)
    y = torch.baddbmm(bias.flatten(0, 1)[:, None], rows, weight.flatten(0, 1).transpose(1, 2))
    return y.view(layers, heads, batch, slots, weight.shape[-2]).transpose(1, 2)


def standardised_weights(
    weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """W', b' with W' x + b' = W (x - mean) / std + b.

    weight [L, H, out, in], bias [L, H, out], mean and std [L, H, in].
    """
    weight = weight / std[:, :, None, :]
    return weight, bias - torch.einsum("lhoi,lhi->lho", weight, mean)


class HeadLayerNorm(nn.Module):
    """LayerNorm over the last dimension with one affine map per (layer, head)."""

    def __init__(self, layers: int, heads: int, width: int, eps: float) -> None:
        """Start as the plain normalisation: weight 1, bias 0."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(layers, heads, width))
        self.bias = nn.Parameter(torch.zeros(layers, heads, width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [L, B, H, T, width]."""
        x = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        return x * self.weight[:, None, :, None, :] + self.bias[:, None, :, None, :]


class HeadEmbedding(nn.Module):
    """A table of rows [rows, width] per (layer, head); PyTorch's Embedding init."""

    def __init__(
        self, layers: int, heads: int, rows: int, width: int, generator: torch.Generator | None
    ) -> None:
        """Draw the rows from a standard normal distribution."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layers, heads, rows, width))
        with torch.no_grad():
            self.weight.normal_(generator=generator)

    def forward(self, index: Tensor) -> Tensor:
        """Rows [L, B, H, T, width] at index [L, B, H, T]."""
        layers, _, heads, _ = index.shape
        layer = torch.arange(layers, device=index.device)[:, None, None, None]
        head = torch.arange(heads, device=index.device)[None, None, :, None]
        return self.weight[layer, head, index]


class Agent(nn.Module):
    """What both families share: geometry, position features, and the checks on their inputs.

    Keys and values may be standardised, x' = (x - mean) / std with mean and std fixed per
    (layer, head, channel): buffers, filled by ``fit_standardisation`` and folded into the first
    layer, here and at export.

    Attributes:
        layers, kv_heads, head_dim_k, head_dim_v, hidden_size, position_dim: geometry.
        position: "table" (a learned row per position) or "smooth"
            (``positions.smooth_position_features``).
        position_rows: longest trained position + 1. Positions beyond it are clamped to it, because
            rows of a table that training never visits keep their random init. Lower it after
            training if training saw less than the constructor assumed.
        standardise: whether keys and values are standardised.
        length_aware: whether scores depend on the length of the cache.
    """

    k_mean: Tensor
    k_std: Tensor
    v_mean: Tensor
    v_std: Tensor
    length_aware = False

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim_k: int,
        head_dim_v: int | None,
        hidden: int,
        position: str,
        position_dim: int,
        position_rows: int,
        standardise: bool,
    ) -> None:
        """Record and check the geometry; head_dim_v None means head_dim_k."""
        super().__init__()
        if position not in POSITION_KINDS:
            raise ValueError(f"position: got {position!r}, expected one of {POSITION_KINDS}")
        self.layers = layers
        self.kv_heads = kv_heads
        self.head_dim_k = head_dim_k
        self.head_dim_v = head_dim_k if head_dim_v is None else head_dim_v
        self.hidden_size = hidden
        self.position = position
        self.position_dim = position_dim
        self.position_rows = position_rows
        sizes = ("layers", "kv_heads", "head_dim_k", "head_dim_v", "hidden_size", "position_rows")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        self.standardise = standardise
        if standardise:
            for name, dim in (("k", self.head_dim_k), ("v", self.head_dim_v)):
                self.register_buffer(f"{name}_mean", torch.zeros(layers, kv_heads, dim))
                self.register_buffer(f"{name}_std", torch.ones(layers, kv_heads, dim))

    @torch.no_grad()
    def fit_standardisation(self, k: Tensor, v: Tensor) -> None:
        """Set mean and std from samples k [L, B, H, T, Dk], v [L, B, H, T, Dv] without padding.

        A constant channel gets std 1, so that it stays finite and carries no signal.
        """
        for x, mean, std in ((k, self.k_mean, self.k_std), (v, self.v_mean, self.v_std)):
            x = x.double()
            deviation = x.std(dim=(1, 3), correction=0)
            mean.copy_(x.mean(dim=(1, 3)))
            std.copy_(torch.where(deviation > 1e-6, deviation, 1.0))

    def checked_inputs(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k and v in the parameters' dtype, and clamped positions [L, B, H, T]."""
        if k.dim() != 5 or v.dim() != 5 or k.shape[:-1] != v.shape[:-1]:
            raise ValueError(
                f"k, v: got shapes {tuple(k.shape)} and {tuple(v.shape)}, expected "
                "[L, B, H, T, Dk] and [L, B, H, T, Dv]"
            )
        layers, batch, heads, slots, dim_k = k.shape
        got = (layers, heads, dim_k, v.shape[-1])
        expected = (self.layers, self.kv_heads, self.head_dim_k, self.head_dim_v)
        if got != expected:
            raise ValueError(f"k, v: got [L, H, Dk, Dv] = {list(got)}, expected {list(expected)}")
        pos = expand_positions(pos, layers, batch, heads, slots)
        dtype = next(self.parameters()).dtype
        return k.to(dtype), v.to(dtype), pos.clamp(0, self.position_rows - 1)

    def smooth_features(self, pos: Tensor) -> Tensor:
        """The features [L, B, H, T, position_dim] of pos [L, B, H, T]."""
        return smooth_position_features(pos, self.position_dim, next(self.parameters()).dtype)


class PaperAgent(Agent):
    """The paper's agent, exactly (arXiv 2602.10238, released code).

        e_k = LayerNorm(W_k k + b_k)             [256]
        e_v = LayerNorm(W_v v + b_v)             [256]
        e_p = LayerNorm(E[min(pos, P - 1)])      [32]
        h_1 = SiLU(LayerNorm(W_1 [e_k; e_v; e_p] + b_1))
        h_2 = SiLU(LayerNorm(W_2 h_1 + b_2))
        score = w_3 . h_2 + b_3

    With ``position="smooth"`` the features themselves replace e_p: they are bounded already.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim_k: int,
        head_dim_v: int | None = None,
        *,
        hidden: int = 256,
        branch_k: int = 256,
        branch_v: int = 256,
        position: str = "table",
        position_dim: int = 32,
        position_rows: int = 12_000,
        norm_eps: float = 1e-5,
        standardise: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        """Draw the initial weights as PyTorch's layers do.

        Args:
            layers, kv_heads, head_dim_k, head_dim_v: geometry of the cache; head_dim_v defaults to
                head_dim_k.
            hidden: width of both MLP layers.
            branch_k, branch_v: widths of the key and value branches.
            position: "table" or "smooth".
            position_dim: width of the position branch.
            position_rows: P, longest trained position + 1.
            norm_eps: of every LayerNorm.
            standardise: standardise keys and values; the paper does not.
            generator: seeds the initialisation.
        """
        super().__init__(
            layers,
            kv_heads,
            head_dim_k,
            head_dim_v,
            hidden,
            position,
            position_dim,
            position_rows,
            standardise,
        )
        self.norm_eps = norm_eps
        grid = (layers, kv_heads)
        self.k_proj = HeadLinear(*grid, self.head_dim_k, branch_k, generator)
        self.k_norm = HeadLayerNorm(*grid, branch_k, norm_eps)
        self.v_proj = HeadLinear(*grid, self.head_dim_v, branch_v, generator)
        self.v_norm = HeadLayerNorm(*grid, branch_v, norm_eps)
        if position == "table":
            self.pos_embedding = HeadEmbedding(*grid, position_rows, position_dim, generator)
            self.pos_norm = HeadLayerNorm(*grid, position_dim, norm_eps)
        self.input = HeadLinear(*grid, branch_k + branch_v + position_dim, hidden, generator)
        self.norm1 = HeadLayerNorm(*grid, hidden, norm_eps)
        self.hidden = HeadLinear(*grid, hidden, hidden, generator)
        self.norm2 = HeadLayerNorm(*grid, hidden, norm_eps)
        self.output = HeadLinear(*grid, hidden, 1, generator)

    def forward(
        self, k: Tensor, v: Tensor, pos: Tensor, length: Tensor | int | None = None
    ) -> Tensor:
        """Scores [L, B, H, T] of k [L, B, H, T, Dk], v [L, B, H, T, Dv] at pos (integers; [T],
        [B, T] or [L, B, H, T]). Padding is scored as position 0: mask it. ``length`` changes
        nothing: it is there for agents that look at it."""
        k, v, pos = self.checked_inputs(k, v, pos)
        e_k = self.k_norm(affine(k, *self.branch("k")))
        e_v = self.v_norm(affine(v, *self.branch("v")))
        if self.position == "table":
            e_p = self.pos_norm(self.pos_embedding(pos))
        else:
            e_p = self.smooth_features(pos)
        h_1 = F.silu(self.norm1(self.input(torch.cat([e_k, e_v, e_p], dim=-1))))
        h_2 = F.silu(self.norm2(self.hidden(h_1)))
        scores: Tensor = self.output(h_2).squeeze(-1)
        return scores

    def branch(self, name: str) -> tuple[Tensor, Tensor]:
        """W [L, H, out, D] and b [L, H, out] of branch "k" or "v", standardisation included."""
        linear = self.k_proj if name == "k" else self.v_proj
        if not self.standardise:
            return linear.weight, linear.bias
        mean, std = (self.k_mean, self.k_std) if name == "k" else (self.v_mean, self.v_std)
        return standardised_weights(linear.weight, linear.bias, mean, std)

    # Where each parameter of ours is found in the state dict of one released agent.
    RELEASED_KEYS: Mapping[str, str] = {
        "k_proj.weight": "k_proj.weight",
        "k_proj.bias": "k_proj.bias",
        "k_norm.weight": "k_norm.weight",
        "k_norm.bias": "k_norm.bias",
        "v_proj.weight": "v_proj.weight",
        "v_proj.bias": "v_proj.bias",
        "v_norm.weight": "v_norm.weight",
        "v_norm.bias": "v_norm.bias",
        "pos_embedding.weight": "pos_embedding.weight",
        "pos_norm.weight": "pos_norm.weight",
        "pos_norm.bias": "pos_norm.bias",
        "input.weight": "mlp.0.weight",
        "input.bias": "mlp.0.bias",
        "norm1.weight": "mlp.1.weight",
        "norm1.bias": "mlp.1.bias",
        "hidden.weight": "mlp.3.weight",
        "hidden.bias": "mlp.3.bias",
        "norm2.weight": "mlp.4.weight",
        "norm2.bias": "mlp.4.bias",
        "output.weight": "mlp.6.weight",
        "output.bias": "mlp.6.bias",
    }

    @classmethod
    def from_released(
        cls,
        state_dicts: Sequence[Sequence[Mapping[str, Tensor]]],
        *,
        keys: Mapping[str, str] | None = None,
        position_rows: int | None = None,
        norm_eps: float = 1e-5,
    ) -> PaperAgent:
        """Build the agent from released ones, one state dict per [layer][head].

        A released agent holds 21 tensors: key projection and LayerNorm, value projection and
        LayerNorm, position embedding and LayerNorm, and the MLP (Linear, LayerNorm, SiLU, Linear,
        LayerNorm, SiLU, Linear). All widths are read from their shapes.

        Args:
            state_dicts: [layers][kv_heads] mappings from name to tensor, equal in shapes.
            keys: names that differ from ``RELEASED_KEYS``, as {our name: released name}.
            position_rows: longest position the agents were trained on, + 1; by default the size of
                the table. Pass it when it is known: rows beyond are untrained.
            norm_eps: of every LayerNorm.

        Raises:
            ValueError: names that are missing or left over, with their shapes, or shapes that do
                not form the architecture.
        """
        names = {**cls.RELEASED_KEYS, **(keys or {})}
        unknown = sorted(names.keys() - cls.RELEASED_KEYS.keys())
        if unknown:
            raise ValueError(
                f"keys: got unknown names {unknown}, expected some of {sorted(cls.RELEASED_KEYS)}"
            )
        layers, heads = len(state_dicts), len(state_dicts[0]) if state_dicts else 0
        if heads == 0 or any(len(row) != heads for row in state_dicts):
            raise ValueError(
                f"state_dicts: got {[len(row) for row in state_dicts]} agents per layer, expected "
                "the same number, at least 1, in every layer"
            )
        for i, row in enumerate(state_dicts):
            for j, state in enumerate(row):
                _check_released(state, names, state_dicts[0][0], f"state_dicts[{i}][{j}]")
        shape = {ours: state_dicts[0][0][theirs].shape for ours, theirs in names.items()}
        try:
            agent = cls(
                layers,
                heads,
                shape["k_proj.weight"][1],
                shape["v_proj.weight"][1],
                hidden=shape["hidden.weight"][0],
                branch_k=shape["k_proj.weight"][0],
                branch_v=shape["v_proj.weight"][0],
                position_dim=shape["pos_embedding.weight"][1],
                position_rows=shape["pos_embedding.weight"][0],
                norm_eps=norm_eps,
            )
            stacked = {
                ours: torch.stack([torch.stack([s[theirs] for s in row]) for row in state_dicts])
                for ours, theirs in names.items()
            }
            agent.load_state_dict(stacked)
        except (IndexError, RuntimeError) as error:
            listing = "\n".join(f"  {names[o]}: {list(s)}" for o, s in shape.items())
            raise ValueError(
                f"state_dicts: shapes do not form the paper's architecture\n{listing}\n{error}"
            ) from error
        if position_rows is not None:
            table = agent.position_rows
            if not 1 <= position_rows <= table:
                raise ValueError(f"position_rows: got {position_rows}, expected 1 to {table}")
            agent.position_rows = position_rows
        return agent


def _check_released(
    state: Mapping[str, Tensor], names: Mapping[str, str], first: Mapping[str, Tensor], where: str
) -> None:
    missing = [f"{theirs} (our {ours})" for ours, theirs in names.items() if theirs not in state]
    extra = [
        f"{name} {list(state[name].shape)}" for name in sorted(state.keys() - set(names.values()))
    ]
    if missing or extra:
        raise ValueError(
            f"{where}: missing {missing or 'nothing'}; unexpected {extra or 'nothing'}; "
            "pass keys={our name: released name} for names that differ"
        )
    for theirs in names.values():
        if state[theirs].shape != first[theirs].shape:
            raise ValueError(
                f"{where}[{theirs!r}]: got shape {list(state[theirs].shape)}, expected "
                f"{list(first[theirs].shape)} as in state_dicts[0][0]"
            )


class SmallAgent(Agent):
    """A small policy: standardised key and value, smooth position features, two hidden layers.

        x = [(k - mean_k) / std_k; (v - mean_v) / std_v; f(min(pos, P - 1))]
        score = w_3 . SiLU(W_2 SiLU(W_1 x + b_1) + b_2) + b_3

    Without LayerNorm the standardisation folds into W_1, and a head of 64 channels has 13,000
    weights.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim_k: int,
        head_dim_v: int | None = None,
        *,
        hidden: int = 64,
        position: str = "smooth",
        position_dim: int = 8,
        position_rows: int = 12_000,
        inputs: str = "k+v+pos",
        generator: torch.Generator | None = None,
    ) -> None:
        """Draw the initial weights as PyTorch's layers do.

        Args:
            layers, kv_heads, head_dim_k, head_dim_v: geometry of the cache; head_dim_v defaults to
                head_dim_k.
            hidden: width of both hidden layers.
            position: "smooth" or "table" (learned rows, without LayerNorm).
            position_dim: number of position features.
            position_rows: P, longest trained position + 1.
            inputs: what the network sees, some of k, v, pos and age joined by +. The age of an
                entry is the length of the cache minus its position, as smooth features. What is
                left out has weight 0, so the shapes stay the same.
            generator: seeds the initialisation.
        """
        super().__init__(
            layers,
            kv_heads,
            head_dim_k,
            head_dim_v,
            hidden,
            position,
            position_dim,
            position_rows,
            standardise=True,
        )
        self.inputs = tuple(inputs.split("+"))
        if not set(self.inputs) <= set(INPUTS) or len(set(self.inputs)) != len(self.inputs):
            raise ValueError(f"inputs: got {inputs!r}, expected some of {'+'.join(INPUTS)}")
        self.length_aware = "age" in self.inputs
        grid = (layers, kv_heads)
        if position == "table":
            self.pos_embedding = HeadEmbedding(*grid, position_rows, position_dim, generator)
        widths = self._input_widths()
        self.input = HeadLinear(*grid, sum(widths.values()), hidden, generator)
        self.hidden = HeadLinear(*grid, hidden, hidden, generator)
        self.output = HeadLinear(*grid, hidden, 1, generator)

    def forward(
        self, k: Tensor, v: Tensor, pos: Tensor, length: Tensor | int | None = None
    ) -> Tensor:
        """Scores [L, B, H, T] of k [L, B, H, T, Dk], v [L, B, H, T, Dv] at pos (integers; [T],
        [B, T] or [L, B, H, T]). Padding is scored as position 0: mask it.

        ``length``, one number or one for each position, is needed if the age is an input: the
        position of the token that comes next."""
        k, v, clamped = self.checked_inputs(k, v, pos)
        if self.position == "table":
            features = [k, v, self.pos_embedding(clamped)]
        else:
            features = [k, v, self.smooth_features(clamped)]
        if self.length_aware:
            if length is None:
                raise ValueError("length: got None, expected the cache's, because age is an input")
            age = expand_positions(length - pos, *k.shape[:-1])
            features.append(self.smooth_features(age))
        weight, bias = self.first_layer()
        h_1 = F.silu(affine(torch.cat(features, dim=-1), weight, bias))
        h_2 = F.silu(self.hidden(h_1))
        scores: Tensor = self.output(h_2).squeeze(-1)
        return scores

    def first_layer(self) -> tuple[Tensor, Tensor]:
        """W_1 [L, H, hidden, Dk + Dv + F] and b_1 [L, H, hidden], standardisation included.

        With the age another F columns follow."""
        widths = self._input_widths()
        others = sum(widths.values()) - widths["k"] - widths["v"]
        features = self.k_mean.new_zeros(self.layers, self.kv_heads, others)
        mean = torch.cat([self.k_mean, self.v_mean, features], dim=-1)
        std = torch.cat([self.k_std, self.v_std, features + 1], dim=-1)
        seen = [mean.new_full((width,), name in self.inputs) for name, width in widths.items()]
        weight = self.input.weight * torch.cat(seen)
        return standardised_weights(weight, self.input.bias, mean, std)

    def _input_widths(self) -> dict[str, int]:
        """Columns of the first layer by input, also of those that are left out."""
        widths = {"k": self.head_dim_k, "v": self.head_dim_v, "pos": self.position_dim}
        return widths | ({"age": self.position_dim} if self.length_aware else {})
