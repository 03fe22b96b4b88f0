"""What a caller may give as the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias


class Buffer(Protocol):
    """Anything ``memoryview`` takes: ``collections.abc.Buffer``, from Python 3.12 on."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class Values(Protocol):
    """An array library's array. Most are buffers, too; some type stubs do not say so."""

    def tolist(self) -> object:
        """Its elements as (nested) lists."""
        ...


Tokens: TypeAlias = Sequence[int] | Buffer | Values
"""Integers in ``[0, 2**32)``: a sequence of them, a one-dimensional buffer of an integer format
(``array.array``, numpy, memoryview), or a torch tensor on any device."""
