"""Staging memory of the store, through which frames pass.

The library goes on with a transfer after the deadline. So it never gets a caller's memory: a copy
by our own thread can be given up.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Hashable
from functools import partial
from threading import Condition, Lock
from typing import Self

from hexkv.adapters.net.errors import OutOfTime
from hexkv.plugins.support.mapped import advise_huge
from hexkv.ports import PAGE, Deadline, StoreError


class Shared:
    """A resource with several holders, which ends when the last of them releases it."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._holds = 1
        self._lock = Lock()

    def share(self) -> Self:
        """Add a holder, which must release it, too."""
        with self._lock:
            self._holds += 1
        return self

    def release(self) -> None:
        """Remove a holder; the last one ends the resource."""
        with self._lock:
            self._holds -= 1
            last = not self._holds
        if last:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Slot(Shared):
    """A range of staging memory."""

    def __init__(self, address: int, view: memoryview, end: Callable[[], None]) -> None:
        super().__init__(end)
        self.address = address
        self.view = view


class Staging:
    """One region of whole pages, lent in ranges: it bounds the bytes that wait for a service."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // PAGE) * PAGE
        # Direct I/O uses a segment for each piece of memory: with small pages it takes twice as
        # long.
        self._map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        advise_huge(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._free = [(0, self.size)]
        self._changed = Condition()

    def take(self, size: int, deadline: Deadline) -> Slot:
        """A page-aligned range of *size* bytes.

        Raises:
            StoreError: *size* is more than the whole region.
            OutOfTime: others hold the memory for too long.
        """
        pages = max(PAGE, -(-size // PAGE) * PAGE)
        if pages > self.size:
            raise StoreError(f"a frame of {size} bytes is more than staging_bytes, {self.size}")
        with self._changed:
            if not self._changed.wait_for(lambda: self._fits(pages), deadline.remaining()):
                raise OutOfTime("no memory to pass frames through")
            start = self._cut(pages)
        view = memoryview(self._map)[start : start + size]
        return Slot(self.address + start, view, partial(self._give_back, start, pages))

    def _give_back(self, start: int, size: int) -> None:
        with self._changed:
            ranges = sorted([*self._free, (start, size)])
            self._free = []
            for at, length in ranges:
                if self._free and sum(self._free[-1]) == at:
                    before, had = self._free.pop()
                    at, length = before, had + length
                self._free.append((at, length))
            self._changed.notify_all()

    def _fits(self, pages: int) -> bool:
        return any(length >= pages for _, length in self._free)

    def _cut(self, pages: int) -> int:
        for i, (at, length) in enumerate(self._free):
            if length >= pages:
                self._free[i : i + 1] = [(at + pages, length - pages)] if length > pages else []
                return at
        raise AssertionError("called where it fits")


class Turns:
    """Serializes changes of each name, including those that were given up."""

    def __init__(self) -> None:
        self._busy: set[Hashable] = set()
        self._changed = Condition()

    def take(self, name: Hashable, deadline: Deadline) -> Shared:
        """The exclusive right to change *name*.

        Raises:
            OutOfTime: another change takes too long.
        """
        with self._changed:
            free = self._changed.wait_for(lambda: name not in self._busy, deadline.remaining())
            if not free:
                raise OutOfTime("another change of the chunk takes too long")
            self._busy.add(name)
        return Shared(partial(self._end, name))

    def _end(self, name: Hashable) -> None:
        with self._changed:
            self._busy.discard(name)
            self._changed.notify_all()
