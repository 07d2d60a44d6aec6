"""Tiny random models, and an attention in which every head can be denied single keys."""

from __future__ import annotations

import inspect
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
)

from kvp_ext import Policy

VOCAB, HEAD_DIM, LAYERS = 89, 16, 3
# The name of the cache argument, which transformers 5.24 changed.
CACHE = (
    "cache"
    if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    else ("past_key_values")
)


def _config(kind, query_heads, kv_heads, **more):
    return kind(
        vocab_size=VOCAB,
        hidden_size=query_heads * HEAD_DIM,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=4096,
        # Wide enough for attention to be far from uniform: a wrong mask shows in the logits.
        initializer_range=0.25,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
        **more,
    )


# Those that take a mask for every head.
ATTENTION = ["sdpa", "eager", "flex_attention"]

# Group sizes 1, 3 and 7.
CONFIGS = {
    "llama": _config(LlamaConfig, 6, 2),
    "mistral": _config(MistralConfig, 4, 4, sliding_window=None),
    "qwen2": _config(Qwen2Config, 7, 1),
}


def make_model(config, attention="sdpa", seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    model.generation_config.eos_token_id = None
    return model.eval()


def make_policy(config, seed=0):
    return Policy.random(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        seed=seed,
    )


def random_ids(batch, length, seed=0):
    return torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def forward(model, ids, cache, **kwargs):
    """Logits `[B, q, vocabulary]` of one forward."""
    return model(ids, use_cache=True, **{CACHE: cache}, **kwargs).logits


def generate(model, ids, cache, new_tokens, **kwargs):
    """Greedy tokens `[B, T + new]` and the logits of each `[B, new, vocabulary]`."""
    out = model.generate(
        ids,
        max_new_tokens=new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **({} if cache is None else {CACHE: cache}),
        **kwargs,
    )
    return out.sequences, torch.stack(out.logits, dim=1)


class ReferenceAttention:
    """softmax(q kᵀ / sqrt(d)) v over the keys that `visible` allows, in plain tensor algebra.

    `visible` is `[layers, KV heads, queries, keys]`; `queries` collects what the model asked with.
    """

    def __init__(self):
        self.visible: Tensor | None = None
        self.queries: dict[int, Tensor] = {}

    def __call__(self, module, query, key, value, attention_mask, scaling=None, **_):
        self.queries[module.layer_idx] = query
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        logits = query @ key.transpose(2, 3) * scaling
        visible = self.visible[module.layer_idx].repeat_interleave(group, 0)
        weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
        return (weights @ value).transpose(1, 2), weights


_reference = ReferenceAttention()
AttentionInterface.register("kvp_reference", _reference)


@contextmanager
def reference_attention(model):
    """`model` with the attention above, and the attention itself."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "kvp_reference"
    try:
        yield _reference
    finally:
        model.config._attn_implementation = before


def visibility(config, length, evictions):
    """Which keys each query may see: `[layers, KV heads, length, length]`.

    Args:
        evictions: pairs (number of tokens seen, positions kept `[layers, KV heads, n]`).
    """
    shape = (config.num_hidden_layers, config.num_key_value_heads, length, length)
    visible = torch.ones(length, length, dtype=torch.bool).tril().expand(shape).clone()
    for seen, kept in evictions:
        alive = torch.zeros(*shape[:2], length, dtype=torch.bool)
        alive.scatter_(2, kept.long(), True)
        visible[:, :, seen:, :seen] &= alive[:, :, None, :seen]
    return visible


@torch.no_grad()
def reference_logits(model, ids, evictions):
    """Logits of one forward without a cache, evicted keys hidden from all later queries."""
    with reference_attention(model) as attention:
        attention.visible = visibility(model.config, ids.shape[1], evictions)
        return model(ids, use_cache=False).logits
