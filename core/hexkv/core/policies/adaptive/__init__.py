"""Least worth: what each class of chunks is worth, learned while serving."""

from hexkv.core.policies.adaptive._policy import Adaptive

__all__ = ["Adaptive"]
