"""Answers a question about a document from a cache of a quarter of its size.

    python examples/generate.py [DOCUMENT]

The document is the prompt of the first turn and is evicted before the question is read, so the
policy decides what to keep without knowing what will be asked.
"""

import sys
from pathlib import Path

import torch

import kvp_ext
from kvp_ext.integrations import smollm2
from kvp_ext.integrations.transformers import KVPCache, cache_argument

DOCUMENT = """\
Minutes of the garden club. The spring fair was held on the lawn behind the school. The tombola
brought in more than last year, and the cake stall sold out before noon. Mrs Hale thanked the
volunteers. The code of the tool shed is now 4417. The hedge along the lane will be cut in October,
after the birds have left. The treasurer reported that the new greenhouse is paid for. Mr Oduya
offered to look after the bees until a keeper is found. The next meeting is on the first Tuesday
of the month, in the library, because the hall is being painted.
"""
QUESTION = "\nQuestion: What is the code of the tool shed?\nAnswer: The code is"


def main() -> None:
    document = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else DOCUMENT
    model, tokenizer = smollm2.load()
    policy = kvp_ext.load_policy("smollm2-135m-instruct")
    ids = tokenizer(document, return_tensors="pt").input_ids
    question = tokenizer(QUESTION, return_tensors="pt").input_ids

    cache = KVPCache(model.config, budget=0.25, policy=policy, headroom=32)
    with torch.no_grad():
        model(ids, **cache_argument(model, cache))
    before = cache.memory_bytes()
    cache.evict()  # the next forward would do it by itself; here only to print the sizes
    print(
        f"{ids.shape[1]} tokens, {before / 2**20:.1f} MB -> {int(cache.lengths.max())} tokens per "
        f"head, {cache.memory_bytes() / 2**20:.1f} MB in {cache.last_eviction_ms:.0f} ms"
    )

    conversation = torch.cat([ids, question], dim=1)
    tokens = model.generate(
        conversation,
        attention_mask=torch.ones_like(conversation),
        **cache_argument(model, cache),
        max_new_tokens=12,
        do_sample=False,
    )
    print(tokenizer.decode(tokens[0, ids.shape[1] :]).strip())


if __name__ == "__main__":
    main()
