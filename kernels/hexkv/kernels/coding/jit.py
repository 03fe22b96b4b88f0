"""The settings with which numba compiles this package's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])


def compile_for(*signatures: str) -> Callable[[F], F]:
    """Return a decorator that compiles for given types only: so no call waits for a compiler."""

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
            except RuntimeError:  # numba finds no folder to write its cache to
                if not cache:
                    raise
            else:
                return made
        raise AssertionError("unreachable")

    return decorate


def inline(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a function that emits the LLVM code of its calls."""
    made: Callable[..., Any] = intrinsic(function)
    return made
