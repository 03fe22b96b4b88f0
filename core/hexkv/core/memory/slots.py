"""The division of a pool's memory: whole slots, and slots carved into runs of pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from operator import attrgetter

from hexkv.ports import PAGE, InvalidRequest, frame_bytes


class Block:
    """A range of the pool, and the number of leases on it."""

    __slots__ = ("holds", "offset", "size", "slot", "whole")

    def __init__(self, slot: int, offset: int, size: int, whole: bool) -> None:
        self.slot = slot
        self.offset = offset
        self.size = size
        self.whole = whole
        self.holds = 0


class Slots:
    """The free ranges of the pool. Used under the pool's lock."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._free = list(range(slots - 1, -1, -1))
        self._carved: dict[int, list[tuple[int, int]]] = {}
        self.used = 0
        """Bytes from the pool's start to the end of the furthest range ever taken."""

    def block(self, offset: int, size: int) -> Block:
        """Return the range of *size* bytes at *offset*; :meth:`derive` marks it as taken.

        Raises:
            InvalidRequest: there cannot be such a block.
        """
        slot, at = divmod(offset, self._slot_bytes)
        whole = size * 2 > self._slot_bytes
        fits = at == 0 and size == self._slot_bytes if whole else at + size <= self._slot_bytes
        if slot not in range(self._slots) or not fits or size < 1 or offset % PAGE or size % PAGE:
            raise InvalidRequest(f"no block of {size} bytes is at {offset}")
        return Block(slot, offset, size, whole)

    def blocks(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], Block]:
        """Return the blocks at *places*, by offset and bytes; a place also gives payload bytes.

        Raises:
            InvalidRequest: there cannot be such blocks, or two of them overlap.
        """
        blocks = {(start, size): self.block(start, size) for start, size, _ in places}
        for _, size, payload in places:
            if payload < 0 or frame_bytes(payload) > size:
                raise InvalidRequest(f"a payload of {payload} bytes does not fit its block")
        end = 0
        for block in sorted(blocks.values(), key=attrgetter("offset")):
            if block.offset < end:
                raise InvalidRequest("blocks overlap")
            end = block.offset + block.size
        return blocks

    def take(self, frames: Sequence[int]) -> list[Block]:
        """Take free ranges for the first of *frames*, sizes in bytes, as many as there are."""
        blocks: list[Block] = []
        whole = self._slot_bytes
        for size in frames:
            if size * 2 <= whole:
                block = self._carve(size)
                if block is None:
                    break
            elif self._free:
                slot = self._free.pop()
                block = Block(slot, slot * whole, whole, True)
            else:
                break
            blocks.append(block)
            if self.used < block.offset + block.size:
                self.used = block.offset + block.size
        return blocks

    def _carve(self, size: int) -> Block | None:
        for slot, runs in self._carved.items():
            for i, (start, end) in enumerate(runs):
                if end - start >= size:
                    if end - start == size:
                        del runs[i]
                    else:
                        runs[i] = (start + size, end)
                    return Block(slot, start, size, whole=False)
        if not self._free:
            return None
        slot = self._free.pop()
        start = slot * self._slot_bytes
        self._carved[slot] = [(start + size, start + self._slot_bytes)]
        return Block(slot, start, size, whole=False)

    def give_back(self, block: Block) -> None:
        """Free the range of *block*."""
        if block.whole:
            self._free.append(block.slot)
            return
        runs = self._carved[block.slot]
        start, end = block.offset, block.offset + block.size
        place = bisect_left(runs, (start, end))
        if place < len(runs) and runs[place][0] == end:
            end = runs.pop(place)[1]
        if place and runs[place - 1][1] == start:
            place -= 1
            start = runs.pop(place)[0]
        if end - start == self._slot_bytes:
            del self._carved[block.slot]
            self._free.append(block.slot)
        else:
            runs.insert(place, (start, end))

    def derive(self, blocks: Collection[Block]) -> None:
        """Mark as free all ranges that none of *blocks* takes."""
        taken: dict[int, list[Block]] = {}
        for block in blocks:
            self.used = max(self.used, block.offset + block.size)
            taken.setdefault(block.slot, []).append(block)
        self._free = [slot for slot in range(self._slots - 1, -1, -1) if slot not in taken]
        self._carved = {}
        for slot, held in taken.items():
            if held[0].whole:
                continue
            start = slot * self._slot_bytes
            runs = self._carved[slot] = []
            for block in sorted(held, key=lambda block: block.offset):
                if block.offset > start:
                    runs.append((start, block.offset))
                start = block.offset + block.size
            if start < (slot + 1) * self._slot_bytes:
                runs.append((start, (slot + 1) * self._slot_bytes))
