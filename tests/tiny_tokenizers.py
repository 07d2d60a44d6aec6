"""Tokenizers without a download: one token a character, and two small ones of the usual kinds."""

import functools
from types import SimpleNamespace

TRAINING_TEXT = [
    "The quick brown fox jumps over the lazy dog. One of the special magic numbers is: 12345.",
    "Question: What is the answer? Answer: It is hidden in the text above, between the words.",
    "VAR ABC = 67890 and VAR DEF = VAR ABC\n\nDocument 1:\nThe museum was founded by nobody.",
]
CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class CharacterTokenizer:
    """One token a character; the chat format is <role>…</role>."""

    chat_template = "yes"

    def __call__(self, text, add_special_tokens=True):
        return SimpleNamespace(input_ids=[ord(character) for character in text])

    def decode(self, ids):
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages, tokenize, add_generation_prompt=False):
        assert not tokenize
        text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages)
        return text + ("<assistant>" if add_generation_prompt else "")


def byte_level(chat_template=None):
    """Like GPT-2's: byte-level BPE without special tokens."""
    return _train("byte_level", chat_template)


def metaspace(chat_template=None):
    """Like Llama 2's: `▁` for a space, one put before every text, and BOS."""
    return _train("metaspace", chat_template)


@functools.cache
def _train(kind, chat_template):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(byte_fallback=kind == "metaspace"))
    alphabet = []
    if kind == "byte_level":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
        alphabet = [chr(i) for i in range(32, 127)] + ["\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 20, trainer)
    if kind == "metaspace":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", chat_template=chat_template
    )
