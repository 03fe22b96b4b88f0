"""The common part of the directory contract: nodes, keys, and the fixtures of a subclass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import not_offered
from hexkv.plugins.clock import SystemClock
from hexkv.ports import REPORT_KEYS, ChunkKey, Deadline, Directory, Member

NODES = ("ada", "bob", "cyd")
"""The nodes that a directory of the contract has."""

SECONDS = 60.0
"""A deadline that only a hang reaches."""

Seen = Callable[[str], Directory]
"""Returns the directory as the node of a name sees it, the same object each time."""


def soon() -> Deadline:
    """A deadline that only a hang reaches."""
    return Deadline.after(SystemClock(), SECONDS)


def life(name: str, generation: int = 1) -> Member:
    """A life of a node."""
    where = f"{name}.example:{7000 + generation}"
    return Member(name, generation, where, f"/run/\N{GREEK SMALL LETTER LAMDA}/{name}.admin")


def some(count: int, prefix: str = "chunk", namespace: str = "contract") -> list[ChunkKey]:
    """*count* keys."""
    return [chunk_key(f"{prefix}{i}", namespace) for i in range(count)]


def batches(keys: Sequence[ChunkKey], size: int = REPORT_KEYS) -> Iterable[Sequence[ChunkKey]]:
    """*keys* in batches, as for a snapshot."""
    return (keys[i : i + size] for i in range(0, len(keys), size))


def holders(directory: Directory, keys: Sequence[ChunkKey]) -> list[list[str]]:
    """The names of the holders of each key, sorted."""
    found = directory.locate(keys, soon())
    assert len(found) == len(keys), "an answer for each key"
    return [sorted(member.name for member in row) for row in found]


def _nothing(name: str) -> None:
    del name


class DirectoryCase:
    """The fixtures of a subclass."""

    @pytest.fixture
    def seen(self) -> Seen:
        """A function that returns the empty directory as one of ``NODES`` sees it."""
        raise NotImplementedError("give the subclass a `seen` fixture")

    @pytest.fixture
    def elapse(self) -> Callable[[float], None]:
        """A function that lets that many seconds pass for the directory."""
        not_offered("elapse")

    @pytest.fixture
    def vanish(self) -> Callable[[str], None]:
        """A function that ends a node without a farewell; requests to it fail."""
        return _nothing

    @pytest.fixture
    def forget(self) -> Callable[[], None]:
        """A function that has the directory lose everything, as a restart does."""
        not_offered("forget")

    @pytest.fixture
    def stalled(self) -> Callable[[], AbstractContextManager[None]]:
        """A context in which no server answers, and connections stay open."""
        not_offered("stalled")
