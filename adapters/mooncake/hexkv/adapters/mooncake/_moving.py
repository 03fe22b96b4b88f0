"""Moves objects between nodes and the caller's memory, in place or through staging."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hexkv.adapters.mooncake._connection import RetriedConnection
from hexkv.adapters.mooncake._errands import CallThreads
from hexkv.adapters.mooncake._native import Client
from hexkv.adapters.mooncake._staging import Staging
from hexkv.ports import Deadline

Transfer = Callable[[Client, Sequence[int]], list[int]]
"""Moves a group of objects to or from the addresses given; returns a code for each."""

Copy = Callable[[int, memoryview], None]
"""Copies the object of an index to or from a buffer of its size."""


class Move(NamedTuple):
    """An object to move."""

    place: int
    """The index in its batch."""

    size: int

    address: int | None
    """Of the caller's memory, if the client can use it directly."""


class ObjectMover:
    """Moves groups of objects.

    In the registered pool the client works directly, in the caller's thread: the call returns
    when the client is done with that memory, which may be after the deadline. For any other
    memory the client gets staging buffers, and the caller stops waiting at the deadline;
    afterwards the client does not touch the caller's memory.
    """

    def __init__(
        self, connection: RetriedConnection, threads: CallThreads, staging: Staging
    ) -> None:
        self._connection = connection
        self._threads = threads
        self._staging = staging

    def address(self, memory: memoryview) -> int | None:
        """The address of *memory* if the client may read and write it directly; else None."""
        if memory.readonly or not memory.nbytes or not memory.c_contiguous:
            return None
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return address if self._connection.knows(address, memory.nbytes) else None

    def groups(self, moves: Sequence[Move]) -> Iterator[list[Move]]:
        """*moves* in groups: the direct ones, then others within the staging limit if possible."""
        direct = [move for move in moves if move.address is not None]
        if direct:
            yield direct
        group: list[Move] = []
        for move in moves:
            if move.address is not None:
                continue
            if group and sum(m.size for m in group) + move.size > self._staging.limit:
                yield group
                group = []
            group.append(move)
        if group:
            yield group

    def fetch(
        self, group: Sequence[Move], transfer: Transfer, take: Copy, deadline: Deadline
    ) -> list[int]:
        """Read a group; call *take* with each object that arrived completely through staging.

        Raises:
            OutOfTime: not all of it arrived before *deadline*.
            StoreError: the store was closed, or is unreachable.
        """
        return self._move(group, transfer, deadline, take=take)

    def send(
        self, group: Sequence[Move], transfer: Transfer, give: Copy, deadline: Deadline
    ) -> list[int]:
        """Write a group; *give* fills the staging buffers. Errors as for :meth:`fetch`."""
        return self._move(group, transfer, deadline, give=give)

    def _move(
        self,
        group: Sequence[Move],
        transfer: Transfer,
        deadline: Deadline,
        *,
        give: Copy | None = None,
        take: Copy | None = None,
    ) -> list[int]:
        direct = [move.address for move in group if move.address is not None]
        with self._connection.client(deadline.remaining()) as client:
            if direct:
                return transfer(client, direct)
            loan = self._staging.lend(client, [move.size for move in group], deadline)
        views = [buffer.view[: move.size] for buffer, move in zip(loan.buffers, group, strict=True)]

        def call() -> list[int]:
            with self._connection.client(0.0) as client:
                return transfer(client, [buffer.address for buffer in loan.buffers])

        try:
            if give is not None:
                for move, view in zip(group, views, strict=True):
                    give(move.place, view)
            loan.share()
            codes = self._threads.run(call, deadline.remaining(), after=loan.release)
            if take is not None:
                for move, view, code in zip(group, views, codes, strict=True):
                    if code == move.size:
                        take(move.place, view)
            return codes
        finally:
            for view in views:
                view.release()
            loan.release()
