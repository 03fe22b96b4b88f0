"""The common part of the store contract: the fixtures and the calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import ClassVar, Protocol, TypeVar

import pytest

from hexkv.contracts.doubles import ListSink, deadline
from hexkv.contracts.kit import waiting
from hexkv.contracts.kit.whole import Whole
from hexkv.contracts.store._service import Service
from hexkv.plugins.spec import RawAccess as RawAccess  # an installed adapter may provide one
from hexkv.ports import ChunkKey, ChunkStore, Hit, Item, Miss, ReadOutcome, Stored

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds of this process's time after which a call counts as hanging."""


Foreign = Callable[[], Mapping[str, bytes]]
"""Returns the medium's present entries that are no chunks, by name, through the back door."""


class Limit(Protocol):
    """The shortest way for the same bytes over the same medium, without the store."""

    def write(self, frame: memoryview) -> None:
        """Write *frame* to the medium, as durably as the store does."""
        ...

    def read(self, into: memoryview) -> None:
        """Fill *into* with the bytes written last."""
        ...


Huge = Callable[[ChunkKey, int], None]
"""Puts a frame of that many zeros under a key on the medium, without allocating the space."""

Aside = Callable[[], int]
"""Returns the number of chunks in the medium's quarantine, through the back door."""

Unreadable = Callable[[ChunkKey], None]
"""Makes each read of a chunk fail, through the back door, until it is deleted or written again."""

Reopen = Callable[[], ChunkStore] | None
"""Closes the store and opens another over the same medium; ``None`` if nothing outlives it."""


class StoreCase(Whole):
    """The fixtures that an author gives: two for every store, and the optional ones."""

    largest: ClassVar[int] = 64 << 20
    """Bytes of the largest frame that the medium takes. Frames of more than 2 GiB are tried where
    it is that much; such a medium needs 3 GiB of room."""

    loses: ClassVar[bool] = False
    """True if chunks may vanish at any time, as from a cache that others also fill."""

    denies_unreachable: ClassVar[bool] = False
    """True if ``contains`` is False for chunks that the store knows to be out of reach."""

    @pytest.fixture
    def store(self) -> ChunkStore:
        """An empty, open store with room for 128 MiB; closed after the test."""
        raise NotImplementedError(f"give {type(self).__name__} a `store` fixture")

    @pytest.fixture
    def raw(self) -> RawAccess:
        """The back door to the medium of this very store."""
        raise NotImplementedError(f"give {type(self).__name__} a `raw` fixture")

    @pytest.fixture
    def reopen(self) -> Reopen:
        """For persistent stores: see :data:`Reopen`. The test closes the stores that it opens."""
        return None

    @pytest.fixture
    def service(self) -> Service | None:
        """For stores on a service: that service, which L4 breaks and mends."""
        return None

    @pytest.fixture
    def exposed(self, store: ChunkStore) -> ChunkStore:
        """A store on that ``service``, if ``store`` itself is not on it.

        For instance one behind a proxy, or on a server that only this test uses.
        """
        return store

    @pytest.fixture
    def sibling(self) -> ChunkStore | None:
        """Another, empty store beside ``store``: same service, other prefix or tenant."""
        return None

    @pytest.fixture
    def foreign(self) -> Foreign | None:
        """Puts foreign entries on the medium, which the store might take for its own."""
        return None

    @pytest.fixture
    def huge(self) -> Huge | None:
        """For stores whose medium can hold sparse frames, as a file system can."""
        return None

    @pytest.fixture
    def aside(self) -> Aside | None:
        """For stores with a quarantine: counts the chunks in it."""
        return None

    @pytest.fixture
    def unreadable(self) -> Unreadable | None:
        """For stores of files or objects: see :data:`Unreadable`. Others stay readable."""
        return None

    @pytest.fixture
    def limit(self) -> Limit | None:
        """The speed of the medium itself, which L6 compares with."""
        return None

    @pytest.fixture
    def restless(self) -> Iterator[None]:
        """Not for authors: makes threads switch very often, so that most interleavings occur."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        yield
        sys.setswitchinterval(before)


def content(size: int, seed: int = 0) -> bytes:
    """*size* random bytes, no two places alike."""
    return Random(seed).randbytes(size)  # noqa: S311 - nothing here is secret


def alike(size: int, seed: int = 0) -> bytes:
    """*size* bytes that begin and end as those of every other *seed* do."""
    middle = slice(size * 3 // 4, size * 7 // 8)
    frame = bytearray(content(size))
    frame[middle] = content(middle.stop - middle.start, seed + 1)
    return bytes(frame)


def write(store: ChunkStore, frames: Mapping[ChunkKey, bytes]) -> None:
    """Write *frames* in one batch; check that all are stored."""
    __tracebackhide__ = True  # the test that calls tells more
    outcomes = store.write([Item(k, memoryview(f)) for k, f in frames.items()], deadline())
    assert len(outcomes) == len(frames), "one outcome per item"
    for frame, outcome in zip(frames.values(), outcomes, strict=True):
        assert isinstance(outcome, Stored), f"a write of {len(frame)} bytes answered {outcome}"


def read(store: ChunkStore, *keys: ChunkKey) -> list[bytes | None]:
    """Read *keys* in one batch: bytes for each hit, ``None`` for each miss; fail otherwise."""
    __tracebackhide__ = True  # the test that calls tells more
    sink = ListSink()
    outcomes = store.read(keys, sink, deadline())
    assert len(outcomes) == len(keys), "one outcome per key"
    for outcome in outcomes:
        assert isinstance(outcome, Hit | Miss), f"a plain read answered {outcome}"
    return [arrived(sink, index, outcome) for index, outcome in enumerate(outcomes)]


def arrived(sink: ListSink, index: int, outcome: ReadOutcome) -> bytes | None:
    """The bytes of a hit; check that the buffer was requested and not overrun."""
    __tracebackhide__ = True  # the test that calls tells more
    if not isinstance(outcome, Hit):
        return None
    data = sink.data(index)
    assert data is not None, f"chunk {index} is {outcome}, but the sink gave no buffer for it"
    assert outcome.size == len(data), f"{outcome} in a buffer of {len(data)} bytes"
    assert not sink.spilled(index), f"chunk {index} was written beyond its buffer"
    return data


def same(actual: Sequence[bytes | None], expected: Sequence[bytes | None]) -> None:
    """Compare chunk by chunk: megabytes of difference would not be a readable message."""
    __tracebackhide__ = True
    assert len(actual) == len(expected)
    for index, (got, want) in enumerate(zip(actual, expected, strict=True)):
        if got == want:
            continue
        assert want is not None, f"chunk {index}: a hit, where there is nothing"
        assert got is not None, f"chunk {index}: a miss, instead of {len(want)} bytes"
        assert len(got) == len(want), f"chunk {index}: {len(got)} bytes instead of {len(want)}"
        place = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
        raise AssertionError(f"chunk {index}: byte {place} of {len(want)} is not the one put")


def answered(actual: Sequence[bool], expected: Sequence[bool]) -> None:
    """Compare the answers to a long batch: pytest would take minutes to show the difference."""
    __tracebackhide__ = True
    assert len(actual) == len(expected), "one answer per key"
    wrong = next((i for i, (a, b) in enumerate(zip(actual, expected, strict=True)) if a != b), None)
    assert wrong is None, f"key {wrong} of {len(expected)}: {actual[wrong]} is not so"


def promptly(call: Callable[[], T]) -> T:
    """Return or raise the result of *call*; fail if it takes longer than :data:`PATIENCE`."""
    return waiting.promptly(call, PATIENCE)
