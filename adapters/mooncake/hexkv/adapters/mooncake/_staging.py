"""Memory of the store's own, for frames that are not in the registered pool.

A call that hangs keeps what was lent to it until it ends. So whoever stopped waiting may
use its own memory at once: nothing is written there any more.
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
        # Over TCP it works without; where it does not, transfers fail and say so.
        client.register_buffer(self.address, size)

    def close(self, client: Client) -> None:
        """Give the pages back."""
        client.unregister_buffer(self.address)
        self.view.release()
        self._map.close()


class Loan:
    """Buffers, until the last one who uses them has released the loan."""

    def __init__(self, staging: Staging, buffers: Sequence[Buffer]) -> None:
        self.buffers = buffers
        self._staging = staging
        self.holds = 1

    def share(self) -> None:
        """One more uses them, until it releases the loan, too."""
        self.holds += 1

    def release(self) -> None:
        """One who used them needs them no more."""
        self._staging.give_back(self)


class Staging:
    """Lends buffers, of *limit* bytes together, and keeps them for the next who asks.

    One who asks for more than *limit* gets it when nobody else has anything.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: list[Buffer] = []
        self._lent = 0
        self._changed = Condition()

    def lend(self, client: Client, sizes: Sequence[int], deadline: Deadline) -> Loan:
        """A buffer of at least each of *sizes*.

        Raises:
            OutOfTime: others have them for longer than *deadline* allows.
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
