"""Least worth: the worth of each class of chunks, learned while serving."""

from hexkv.core.policies.adaptive._policy import Adaptive

__all__ = ["Adaptive"]
