"""Global retention gates (DBTrimKV, arXiv 2605.09649): how long a token stays worth keeping.

gate        the network on hidden states, and the scores that follow from it
gate_file   its file
hidden      the hidden states of a running model
attention   attention in which tokens fade, to train through
loss        what a fading model loses, and how much it still holds
sequences   documents as training sequences
recipe      the choices of a training
train       a gate for a frozen model
log         the picture of a training
"""
