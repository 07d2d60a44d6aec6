"""What the tests of commands share: running one, and a tiny model in a folder."""

import torch
import transformers
import typer
from typer.testing import CliRunner


def run_command(command, *arguments):
    """The result of a command, as typer gives it."""
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def save_tiny_llama(folder, tokenizer):
    """A random model of 2 layers, 2 KV heads and head dim 8, as `save_pretrained` makes it."""
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder
