"""The contract of stores whose memory another process can take over.

Two stores of one process stand for those of two: only the file passes between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Protocol

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.whole import Whole
from hexkv.contracts.store._base import content, write
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkStore,
    Failed,
    FrameFile,
    Hit,
    Item,
    StoreError,
    SupportsHandOver,
    SupportsScan,
)

SIZES = (3 * PAGE - 100, PAGE, 7 * PAGE + 1, 2 * PAGE, PAGE - 1, 5 * PAGE)
FRAMES = {chunk_key(f"handed {i}"): content(size, seed=i) for i, size in enumerate(SIZES)}
KEYS = list(FRAMES)
NEW = {chunk_key("new"): content(4 * PAGE, seed=90), chunk_key("other"): content(PAGE, seed=91)}
ORDER = [KEYS[2], KEYS[0], KEYS[5], KEYS[1]]
"""The keys that are handed over, the least valuable first."""


class HandedStore(ChunkStore, SupportsScan, SupportsHandOver, Protocol):
    """The store under test."""


Make = Callable[[FrameFile | None], HandedStore]
"""Opens a store: an empty one, or one that takes over the file of another."""


class HandOverContract(Whole):
    """Subclass this and give it the fixture ``make``. Optional is ``private``.

    The room of each store is 16 MiB.
    """

    @pytest.fixture
    def make(self) -> Make:
        """See :data:`Make`. The contract closes the stores."""
        raise NotImplementedError(f"give {type(self).__name__} a `make` fixture")

    @pytest.fixture
    def private(self) -> HandedStore:
        """An empty store of the kind whose memory cannot be passed on."""
        not_offered("private")

    @pytest.fixture
    def opened(self, make: Make) -> Iterator[Make]:
        """Opens stores as another process would, and closes them."""
        stores: list[HandedStore] = []

        def opened(file: FrameFile | None) -> HandedStore:
            if file is None:
                stores.append(make(None))
                return stores[-1]
            # The receiver of a message closes the descriptor that came with it.
            copy = os.dup(file.descriptor)
            try:
                stores.append(make(file._replace(descriptor=copy)))
            finally:
                os.close(copy)
            return stores[-1]

        yield opened
        for store in stores:
            store.close()

    @pytest.fixture
    def first(self, opened: Make) -> HandedStore:
        """A store with all of ``FRAMES``."""
        store = opened(None)
        write(store, FRAMES)
        return store

    @promise(
        "handover.1",
        "goes on with the frames that were handed over, byte by byte, least worth first",
        level="L1",
        clause="SupportsHandOver.hand_over, OpenContext.inherited",
        why="a node that is taken over would answer with other chunks' KV, or evict the best first",
        hint="a frame is at its offset; stored times give a scan its order",
    )
    def test_the_next_store_has_what_was_handed_over(
        self, first: HandedStore, opened: Make
    ) -> None:
        heir = opened(handed(first, ORDER))
        assert found(heir, KEYS) == {key: FRAMES[key] for key in ORDER}
        times = {entry.key: entry.stored for entry in heir.scan()}
        assert set(times) == set(ORDER)
        assert all(times[a] < times[b] for a, b in pairwise(ORDER)), "not in the order of worth"

    @promise(
        "handover.2",
        "lists what it has of the keys, in their order, once, in pages that no two frames share",
        level="L1",
        clause="SupportsHandOver.hand_over",
        why="a list that is refused costs the whole tier, and one that lies its frames",
    )
    def test_the_list_is_of_what_is_there(self, first: HandedStore) -> None:
        first.delete(KEYS[5:], deadline())
        file = handed(first, [*ORDER, chunk_key("absent"), *ORDER])
        there = [key for key in ORDER if key != KEYS[5]]
        assert [frame.key for frame in file.frames] == there
        assert [frame.size for frame in file.frames] == [len(FRAMES[key]) for key in there]
        at = 0
        for frame in sorted(file.frames, key=lambda frame: frame.offset):
            assert frame.offset % PAGE == 0, "a frame does not begin where a page does"
            assert frame.offset >= at, "frames share a page"
            at = frame.offset + -(-frame.size // PAGE) * PAGE
        assert at <= file.end, "a frame lies behind the end"

    @promise(
        "handover.3",
        "takes no write from then on, on either side, until it is thawed",
        level="L2",
        clause="SupportsHandOver",
        why="a frame that one side writes would be where the other one writes its own",
    )
    def test_nobody_writes_meanwhile(self, first: HandedStore, opened: Make) -> None:
        heir = opened(handed(first, ORDER))
        for store in (first, heir):
            assert not taken(store, NEW), "a write while it is not known whose memory it is"
        assert found(heir, ORDER) == found(first, ORDER) == {k: FRAMES[k] for k in ORDER}

    @promise(
        "handover.4",
        "changes no frame of the list, even if one side deletes it during a hand-over",
        level="L2",
        clause="SupportsHandOver.hand_over",
        why="the side that goes on would give zeros, or the next frame, for a hit",
        hint="note the blocks to free, and free them when it is thawed",
    )
    def test_neither_deletes_under_the_other(self, first: HandedStore, opened: Make) -> None:
        heir = opened(handed(first, ORDER))
        assert list(heir.delete([ORDER[0]], deadline())) == [True]
        assert list(first.delete([ORDER[1]], deadline())) == [True]
        assert found(first, ORDER) == {k: FRAMES[k] for k in ORDER if k != ORDER[1]}
        assert found(heir, ORDER) == {k: FRAMES[k] for k in ORDER[1:]}

    @promise(
        "handover.5",
        "leaves all of the list to the next store when it is closed",
        level="L2",
        clause="SupportsHandOver.hand_over",
        why="the process before ends while its memory is in use",
    )
    def test_closing_changes_nothing(self, first: HandedStore, opened: Make) -> None:
        heir = opened(handed(first, ORDER))
        first.close()
        assert found(heir, ORDER) == {key: FRAMES[key] for key in ORDER}
        heir.thaw()
        assert found(heir, ORDER) == {key: FRAMES[key] for key in ORDER}

    @promise(
        "handover.6",
        "goes on with all that it has if it is thawed itself, because no process took it over",
        level="L3",
        clause="SupportsHandOver.thaw",
        why="an upgrade that failed would cost the node its memory",
    )
    def test_it_can_be_taken_back(self, first: HandedStore, opened: Make) -> None:
        heir = opened(handed(first, ORDER))
        heir.delete(ORDER, deadline())
        heir.close()
        first.thaw()
        assert found(first, KEYS) == FRAMES
        write(first, NEW)
        assert found(first, [*KEYS, *NEW]) == FRAMES | NEW

    @promise(
        "handover.7",
        "takes writes when it is thawed, beside what it was left, and can be handed over again",
        level="L1",
        clause="SupportsHandOver.thaw",
        why="the second upgrade is like the first; new chunks must not lie on old ones",
        hint="nothing is written in front of FrameFile.end",
    )
    def test_the_next_one_goes_on(self, first: HandedStore, opened: Make) -> None:
        store = first
        kept = {key: FRAMES[key] for key in ORDER}
        for turn in range(3):
            heir = opened(handed(store, list(kept)))
            store.close()
            heir.thaw()
            new = {chunk_key(f"turn {turn}"): content(2 * PAGE, seed=50 + turn)}
            write(heir, new)
            write(heir, {ORDER[0]: content(PAGE, seed=60 + turn)})
            kept |= {**new, ORDER[0]: content(PAGE, seed=60 + turn)}
            assert found(heir, [*KEYS, *kept]) == kept
            store = heir

    @promise(
        "handover.8",
        "frees frames that are on no list, and those deleted during the hand-over",
        level="L3",
        clause="SupportsHandOver.thaw",
        why="each upgrade would leave more memory that no process can use",
    )
    def test_what_is_nobodys_is_freed(self, first: HandedStore, opened: Make) -> None:
        file = handed(first, ORDER)
        descriptor = os.dup(file.descriptor)
        try:
            heir = opened(file)
            first.close()
            heir.delete(ORDER[:2], deadline())
            heir.thaw()
            assert taken_bytes(descriptor) == pages(len(FRAMES[key]) for key in ORDER[2:])
            heir.delete(ORDER[2:], deadline())
            assert taken_bytes(descriptor) == 0
        finally:
            os.close(descriptor)

    @promise(
        "handover.9",
        "keeps a descriptor of its own, and none that it was given",
        level="L1",
        clause="FrameFile.descriptor",
        why="a number that another owner closes is soon another file's",
    )
    def test_the_descriptor_is_the_callers(self, first: HandedStore, make: Make) -> None:
        file = handed(first, ORDER)
        copy = os.dup(file.descriptor)
        heir = make(file._replace(descriptor=copy))
        try:
            os.close(copy)  # raises if the store did
            assert found(heir, ORDER) == {key: FRAMES[key] for key in ORDER}
        finally:
            heir.close()
            with suppress(OSError):
                os.close(copy)
                pytest.fail("a descriptor that was closed is open again")

    @promise(
        "handover.10",
        "reports that its memory cannot be passed on, and goes on",
        level="L1",
        clause="SupportsHandOver.hand_over",
        why="a configuration without shared memory would stop storing at its first upgrade",
    )
    def test_what_cannot_be_passed_on_goes_on(self, private: HandedStore) -> None:
        write(private, FRAMES)
        assert private.hand_over(ORDER) is None
        write(private, NEW)
        assert found(private, [*KEYS, *NEW]) == FRAMES | NEW


def handed(store: HandedStore, keys: Sequence[ChunkKey]) -> FrameFile:
    """The file that *store* hands over."""
    __tracebackhide__ = True
    file = store.hand_over(keys)
    assert file is not None, "it cannot pass its memory on"
    return file


def found(store: HandedStore, keys: Sequence[ChunkKey]) -> dict[ChunkKey, bytes]:
    """The frames of *keys* that *store* has."""
    sink = ListSink()
    outcomes = store.read(keys, sink, deadline())
    return {
        key: sink.data(index) or b""
        for index, (key, outcome) in enumerate(zip(keys, outcomes, strict=True))
        if isinstance(outcome, Hit)
    }


def taken(store: HandedStore, frames: dict[ChunkKey, bytes]) -> bool:
    """True if any of *frames* was written."""
    items = [Item(key, memoryview(frame)) for key, frame in frames.items()]
    try:
        outcomes = store.write(items, deadline())
    except StoreError:
        return False
    return not all(isinstance(outcome, Failed) for outcome in outcomes)


def taken_bytes(descriptor: int) -> int:
    """Memory that a file takes."""
    return os.fstat(descriptor).st_blocks * 512


def pages(sizes: Iterator[int]) -> int:
    """Bytes of the pages that frames of *sizes* take."""
    return sum(-(-size // PAGE) * PAGE for size in sizes)
