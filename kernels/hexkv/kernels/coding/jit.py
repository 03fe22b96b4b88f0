"""How numba is asked to compile what this package computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])


def compile_for(*signatures: str) -> Callable[[F], F]:
    """numba, for given types only, so that no call ever waits for a compiler."""

    def decorate(function: F) -> F:
        for cache in (True, False):
            try:
                made: F = numba.njit(  # type: ignore[assignment]
                    list(signatures),
                    nogil=True,
                    cache=cache,
                    error_model="numpy",
                    boundscheck=False,
                )(function)
            except RuntimeError:  # there is no folder that numba can write its cache to
                if not cache:
                    raise
            else:
                return made
        raise AssertionError("unreachable")

    return decorate


def inline(function: Callable[..., object]) -> Callable[..., Any]:
    """A function that says to LLVM what calls of it are."""
    made: Callable[..., Any] = intrinsic(function)
    return made
