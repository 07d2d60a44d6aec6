"""Training eviction policies: traces, objectives and the optimiser.

traces     what a frozen model computes on a document: keys, values, future utility
objectives losses of a policy's scores given utilities
train      all heads at once, over traces
"""
