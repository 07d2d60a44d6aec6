"""Tiny random models of many families, and what transformers' own eager attention says of them."""

import torch
import transformers

VOCAB, LAYERS = 61, 3


def config(kind, query_heads=6, kv_heads=2, **more):
    """A configuration whose attention is far from uniform, so that a wrong mask shows."""
    return getattr(transformers, kind)(
        vocab_size=VOCAB,
        hidden_size=query_heads * 8,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        **more,
    )


FAMILIES = {
    "llama": lambda: config("LlamaConfig"),
    "llama-scaled-rope": lambda: config(
        "LlamaConfig", rope_scaling={"rope_type": "linear", "factor": 4.0}
    ),
    "qwen2": lambda: config("Qwen2Config", 7, 1),
    "qwen2-sliding": lambda: config(
        "Qwen2Config", use_sliding_window=True, sliding_window=16, max_window_layers=1
    ),
    "qwen3": lambda: config("Qwen3Config"),
    "mistral": lambda: config("MistralConfig", 4, 4, sliding_window=None),
    "mistral-sliding": lambda: config("MistralConfig", 4, 2, sliding_window=16),
    "phi3": lambda: config("Phi3Config"),
    "phi3-sliding": lambda: config("Phi3Config", sliding_window=16),
    # Capped logits, a scale of its own and windows in every other layer.
    "gemma2": lambda: config(
        "Gemma2Config", sliding_window=16, query_pre_attn_scalar=50, attn_logit_softcapping=3.0
    ),
    # Learned sinks that take a share of the attention.
    "gpt-oss": lambda: config(
        "GptOssConfig", sliding_window=16, num_local_experts=2, num_experts_per_tok=1
    ),
}


def make(family, dtype=torch.float32):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
    if family == "gemma2":
        model.config._attn_implementation = "eager"  # sdpa of transformers 4 does not cap logits
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model.to(dtype).eval()


def random_ids(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (length,), generator=generator).tolist()


@torch.no_grad()
def eager(model, ids):
    """Logits [T, vocabulary] and attention weights [L, Hq, T, T], as the model itself gives them.

    Sinks take part in the softmax and are not among the weights.
    """
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    output = model(torch.tensor([ids]), output_attentions=True, use_cache=False)
    model.config._attn_implementation = before
    return output.logits[0], torch.stack([layer[0] for layer in output.attentions])
