"""Training eviction policies: traces of a frozen model, objectives and the optimiser.

traces       what a model computes on a document: keys, values, future utility
collect      tracing a stream of documents into a folder
trace_store  such a folder, with its manifest
trace_pool   several folders as one
objectives   losses of a policy's scores given utilities
recipe       the choices of a training
corpus       batches from traces
train        all heads at once, phase after phase
validation   the ranking cost on held-out traces
"""
