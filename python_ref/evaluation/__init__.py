"""What eviction costs a real model: its answers after part of the cache is gone.

One prefill per document serves all methods and budgets. Entries are removed, never masked; what
follows runs on the smaller cache at the logical positions it would have had. Where heads keep
different counts, rows are padded to the longest and do not see the padding.

metrics       what an answer is worth
ranking_cost  what a ranking loses of the attention to come
prefilled     a document's one prefill
contestants   the methods and policies, by the text that names them
allocation    how heads share a budget, by the text that names it
eviction      budgets and eviction
ragged        attention over rows of unequal length
running       going on from a cache: answers and generated text
plan, runner  what to compare, and the comparison
records       its results, one JSON line each
statistics    confidence intervals
summary       from records to figures
tables, curves  and from figures to tables and plots
"""

from __future__ import annotations

from python_ref.evaluation.allocation import Allocation, allocation, allocations
from python_ref.evaluation.contestants import (
    Contestant,
    Scorer,
    by_agent,
    by_method,
    by_policy,
    contestant,
    contestants,
)
from python_ref.evaluation.eviction import Survivors, evict, parse_budget
from python_ref.evaluation.metrics import METRICS, Answer, exact_match, perplexity
from python_ref.evaluation.plan import Plan
from python_ref.evaluation.prefilled import Needs, Prefilled, prefill_document, prefill_further
from python_ref.evaluation.records import PROTOCOLS, Record, append_records, read_records
from python_ref.evaluation.runner import evaluate, evaluate_into
from python_ref.evaluation.running import answers
from python_ref.evaluation.statistics import bootstrap_interval, wilson_interval
from python_ref.evaluation.summary import Cell, Summary, summarise

__all__ = [
    "METRICS",
    "PROTOCOLS",
    "Allocation",
    "Answer",
    "Cell",
    "Contestant",
    "Needs",
    "Plan",
    "Prefilled",
    "Record",
    "Scorer",
    "Summary",
    "Survivors",
    "allocation",
    "allocations",
    "answers",
    "append_records",
    "bootstrap_interval",
    "by_agent",
    "by_method",
    "by_policy",
    "contestant",
    "contestants",
    "evaluate",
    "evaluate_into",
    "evict",
    "exact_match",
    "parse_budget",
    "perplexity",
    "prefill_document",
    "prefill_further",
    "read_records",
    "summarise",
    "wilson_interval",
]
