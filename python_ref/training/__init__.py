"""Training eviction policies: text sources, documents, traces, objectives and the optimiser.

sources    texts, and which of them training may see
documents  a context and the branches that may follow it: needle questions, continuations
traces     what a frozen model computes on a document: keys, values, future utility
objectives losses of a policy's scores given utilities
train      all heads at once, over traces
"""
