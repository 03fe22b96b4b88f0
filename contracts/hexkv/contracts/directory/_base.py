"""What the promises of directories share: nodes, keys, and the fixtures of a subclass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.promise import not_offered
from hexkv.plugins.clock import SystemClock
from hexkv.ports import REPORT_KEYS, ChunkKey, Deadline, Directory, Member

NODES = ("ada", "bob", "cyd")
"""The nodes that a directory of the contract has."""

SECONDS = 60.0
"""A deadline that only a hang meets."""

Seen = Callable[[str], Directory]
"""Gives the directory as the node of a name sees it, each time the same object."""


def soon() -> Deadline:
    """A deadline that only a hang meets."""
    return Deadline.after(SystemClock(), SECONDS)


def life(name: str, generation: int = 1) -> Member:
    """A life of a node."""
    where = f"{name}.example:{7000 + generation}"
    return Member(name, generation, where, f"/run/\N{GREEK SMALL LETTER LAMDA}/{name}.admin")


def some(count: int, prefix: str = "chunk", namespace: str = "contract") -> list[ChunkKey]:
    """So many keys."""
    return [chunk_key(f"{prefix}{i}", namespace) for i in range(count)]


def batches(keys: Sequence[ChunkKey], size: int = REPORT_KEYS) -> Iterable[Sequence[ChunkKey]]:
    """*keys* as a snapshot."""
    return (keys[i : i + size] for i in range(0, len(keys), size))


def holders(directory: Directory, keys: Sequence[ChunkKey]) -> list[list[str]]:
    """The names of those who hold each key, sorted."""
    found = directory.locate(keys, soon())
    assert len(found) == len(keys), "an answer for each key"
    return [sorted(member.name for member in row) for row in found]


def _nothing(name: str) -> None:
    del name


class DirectoryCase:
    """The fixtures of a subclass."""

    @pytest.fixture
    def seen(self) -> Seen:
        """Gives the empty directory as each of ``NODES`` sees it."""
        raise NotImplementedError("give the subclass a `seen` fixture")

    @pytest.fixture
    def elapse(self) -> Callable[[float], None]:
        """Lets so many seconds pass for the directory."""
        not_offered("elapse")

    @pytest.fixture
    def vanish(self) -> Callable[[str], None]:
        """Ends a node without a word; what it could be asked is asked in vain."""
        return _nothing

    @pytest.fixture
    def forget(self) -> Callable[[], None]:
        """Has the directory lose everything, as when it is started anew."""
        not_offered("forget")

    @pytest.fixture
    def stalled(self) -> Callable[[], AbstractContextManager[None]]:
        """A block in which nobody answers, and connections stay open."""
        not_offered("stalled")
