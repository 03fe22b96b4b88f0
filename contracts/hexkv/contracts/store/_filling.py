"""L1, continued: the progress that a store reports to a sink while it reads."""

from __future__ import annotations

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.store._base import StoreCase, arrived, content, write
from hexkv.ports import PIECE, ChunkStore

SIZES = (8 * PIECE + 1, 5000, 3 * PIECE)


class _Curious(ListSink):
    """Reads the bytes at each call of ``filled``, as the core does to verify them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, bytes] = {}
        self.wrong: list[str] = []

    def room(self, index: int, size: int) -> memoryview | None:
        self.seen.pop(index, None)
        return super().room(index, size)

    def filled(self, index: int, upto: int) -> None:
        super().filled(index, upto)
        data, before = self.data(index), len(self.seen.get(index, b""))
        if type(upto) is not int or data is None or not before <= upto <= len(data):
            self.wrong.append(f"reported {upto!r} bytes of chunk {index}, after {before}")
        else:
            self.seen[index] = data[:upto]


class Filling(StoreCase):
    """Stores that never call ``filled`` keep this promise, too."""

    @pytest.mark.thorough
    @promise(
        "L1.31",
        "tells a sink of no bytes but those that are in place, and never writes these again",
        clause="Sink.filled",
        why="the core would verify what the memory held before, and read all of it once more",
        hint="tell after the bytes have come, ever more of one buffer; ask for room to begin anew",
    )
    def test_tells_only_of_what_is_there(self, store: ChunkStore) -> None:
        frames = {chunk_key(f"{i}"): content(size, seed=i) for i, size in enumerate(SIZES)}
        write(store, frames)
        sink = _Curious()
        outcomes = store.read(list(frames), sink, deadline())
        assert sink.wrong == []
        for index, (frame, outcome) in enumerate(zip(frames.values(), outcomes, strict=True)):
            seen, found = sink.seen.get(index, b""), arrived(sink, index, outcome)
            assert found in (frame, None)
            assert frame.startswith(seen), f"chunk {index}: bytes reported before they had come"
