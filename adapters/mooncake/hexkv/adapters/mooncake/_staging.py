"""Staging memory of the store, for frames that are not in the registered pool.

A call that hangs keeps its buffers until it ends. So a caller that gave up may reuse its own
memory at once: the call does not write there.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from threading import Condition

from hexkv.adapters.mooncake._errands import OutOfTime
from hexkv.adapters.mooncake._native import Client
from hexkv.ports import PAGE, Deadline


class Buffer:
    """Registered pages of this process."""

    def __init__(self, client: Client, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        # TCP works without registration; where it is needed, transfers fail with an error.
        client.register_buffer(self.address, size)

    def close(self, client: Client) -> None:
        """Release the pages."""
        client.unregister_buffer(self.address)
        self.view.release()
        self._map.close()


class Loan:
    """Buffers on loan, until the last user has released it."""

    def __init__(self, staging: Staging, buffers: Sequence[Buffer]) -> None:
        self.buffers = buffers
        self._staging = staging
        self.holds = 1

    def share(self) -> None:
        """Add a user, which must release the loan, too."""
        self.holds += 1

    def release(self) -> None:
        """Remove a user; the last one returns the buffers."""
        self._staging.give_back(self)


class Staging:
    """Lends buffers of *limit* bytes in total, and keeps them for reuse.

    A request for more than *limit* is granted once no other loan exists.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: list[Buffer] = []
        self._lent = 0
        self._changed = Condition()

    def lend(self, client: Client, sizes: Sequence[int], deadline: Deadline) -> Loan:
        """Lend a buffer of at least each of *sizes*.

        Raises:
            OutOfTime: others hold the buffers beyond *deadline*.
        """
        wanted = [-(-size // PAGE) * PAGE for size in sizes]
        total = sum(wanted)
        buffers: list[Buffer | None] = []
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._lent or self._lent + total <= self.limit, deadline.remaining()
            ):
                raise OutOfTime
            self._lent += total
            for size in wanted:
                found = next((buffer for buffer in self._idle if buffer.size == size), None)
                if found is not None:
                    self._idle.remove(found)
                buffers.append(found)
            surplus = []
            while self._idle and self._lent + sum(b.size for b in self._idle) > self.limit:
                surplus.append(self._idle.pop(0))
        try:
            for buffer in surplus:
                buffer.close(client)
            made = [
                Buffer(client, size) if buffer is None else buffer
                for size, buffer in zip(wanted, buffers, strict=True)
            ]
        except BaseException:
            with self._changed:
                self._lent -= total
                self._changed.notify_all()
            raise
        return Loan(self, made)

    def give_back(self, loan: Loan) -> None:
        """See :meth:`Loan.release`."""
        with self._changed:
            loan.holds -= 1
            if loan.holds:
                return
            self._lent -= sum(buffer.size for buffer in loan.buffers)
            self._idle.extend(loan.buffers)
            self._changed.notify_all()
