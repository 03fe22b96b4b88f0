"""The types accepted as the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias


class Buffer(Protocol):
    """An object that ``memoryview`` accepts: ``collections.abc.Buffer``, from Python 3.12 on."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class Values(Protocol):
    """An array library's array. Most are buffers, too, which some type stubs do not declare."""

    def tolist(self) -> object:
        """Return its elements as (nested) lists."""
        ...


Tokens: TypeAlias = Sequence[int] | Buffer | Values
"""Integers in ``[0, 2**32)``: a sequence of them, a one-dimensional buffer of an integer format
(``array.array``, numpy, memoryview), or a torch tensor on any device."""
