"""The name under which a model takes a cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import signature

from transformers import Cache, GenerationMixin, PreTrainedModel

_NAMES = ("cache", "past_key_values")


def with_cache(model: PreTrainedModel, cache: Cache) -> dict[str, Cache]:
    """The argument that gives *cache* to ``model(...)`` or ``model.generate(...)``.

    transformers calls it ``cache`` from 5.24 on, and ``past_key_values`` before; the code of a
    checkpoint may call it either way, in any version.
    """
    return {_name(type(model).forward): cache}


@lru_cache(maxsize=64)
def _name(forward: Callable[..., object]) -> str:
    # A model that wraps another one may take any argument of that one.
    for function in (forward, GenerationMixin.prepare_inputs_for_generation):
        parameters = signature(function).parameters
        for name in _NAMES:
            if name in parameters:
                return name
    return _NAMES[-1]
