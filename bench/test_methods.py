"""KVP against the baselines: score + select + compact on the same cache.

Run by `make bench`. Every method ends in the same select and compact kernels; what differs is the
score. Baselines are the plain definitions of `python_ref.methods`. Each round starts from a
restored cache, outside the timed region.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from workloads import GEOMETRIES, RECENT, SINKS, Workload

import kvp_ext
from python_ref import methods

TOKENS = [1024, 4096, 16_384, 32_768]
WINDOW = 64
# fp32 as SmolLM2 runs on a CPU, bf16 as a 7B model is stored.
DTYPES = {"SmolLM2-135M": torch.float32, "Qwen2.5-7B": torch.bfloat16}
BASELINES = ["streaming_llm", "knorm", "keydiff", "tova", "snapkv"]


@pytest.fixture(scope="module", params=TOKENS, ids=lambda t: f"{t} tokens")
def tokens(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module", params=GEOMETRIES)
def work(request: pytest.FixtureRequest, tokens: int) -> Workload:
    return Workload(GEOMETRIES[request.param], tokens, DTYPES[request.param])


def _baseline(name: str, work: Workload) -> Callable[[], Tensor]:
    """Scores `[L, B, H, T]` fp32 of one method."""
    method = methods.methods()[name]
    q = work.queries(WINDOW) if method.sees_queries else None
    return lambda: method(k=work.k, v=work.v, pos=work.pos, q=q)


@pytest.mark.parametrize("method", ["kvp small", "kvp paper", *BASELINES])
def test_evict_a_quarter_stays(benchmark, work: Workload, method: str) -> None:
    budget = kvp_ext.budget_from_ratio(work.tokens, keep_ratio=0.25)
    pins = {"sinks": SINKS, "recent": RECENT}
    benchmark.extra_info |= {"geometry": work.geometry.name, "tokens": work.tokens}
    if method.startswith("kvp"):
        policy = work.policy(method.split()[1])
        policy.packed()

        def run() -> kvp_ext.Evicted:
            return kvp_ext.evict_(work.k, work.v, work.pos, budget, policy=policy, **pins)
    else:
        score = _baseline(method, work)

        def run() -> kvp_ext.Evicted:
            return kvp_ext.evict_(work.k, work.v, work.pos, budget, scores=score(), **pins)

    rounds = 5 if work.tokens <= 4096 else 3
    result = benchmark.pedantic(run, setup=work.restore, rounds=rounds, warmup_rounds=1)
    assert result.lengths.unique().tolist() == [budget]
