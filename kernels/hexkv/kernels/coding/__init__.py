"""Quantised KV and its entropy coder, in numpy and compiled by numba; no torch.

``plain`` defines the results, with numpy. ``compiled`` computes the same bytes many times as fast;
``choosing`` uses it as soon as it is compiled. ``tables`` has the probabilities that both ends know
without sending them, ``floats`` the numbers of KV as single precision.
"""
