"""The reference of kvp-ext: learned KV-cache eviction in plain PyTorch.

This package defines what every backend computes. It needs torch alone, runs on any device in any
float dtype, and puts clarity before speed. The names are the field's: a *row* is one
(layer, sequence, KV head) of the cache with T *slots*; an *entry* is the key, value and position
in one slot; an entry is *valid* unless it is padding (see ``selection.valid_entries``).

Shapes use these letters throughout: L layers, B sequences, H KV heads, G query heads per KV head,
T slots, D channels, F position features.
"""
