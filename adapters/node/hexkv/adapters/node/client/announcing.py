"""The client's announcements of chunks that it computes, and its queries for those of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from struct import pack
from typing import TypeVar

from hexkv.adapters.node.wire import Reader, Verb, pack_keys, text
from hexkv.ports import ChunkKey, Deadline, InvalidRequest

T = TypeVar("T")

_ANSWER = 5.0
"""Seconds for the node's answer beside those for which it waits. Without an answer the client
computes chunks under way instead of waiting for them."""

LATER = 2
"""In a node's answer, a chunk that is not expected so far: not all peers have answered yet."""

_MOST = 1 << 15
"""Chunks in one request at most."""


class Announces(ABC):
    """The part of a client that implements ``Announcing`` and ``SupportsPushing``."""

    @abstractmethod
    def _ask(
        self, verb: Verb, body: bytes, deadline: Deadline, read: Callable[[Reader], T]
    ) -> T | None: ...

    @abstractmethod
    def _check(self) -> None: ...

    def announce(
        self, owner: str, group: str, keys: Sequence[ChunkKey], seconds: float, deadline: Deadline
    ) -> int:
        self._check()
        before = pack("<d", seconds) + text(group) + text(owner)
        count = 0
        for start in range(0, len(keys), _MOST):
            body = pack_keys(keys[start : start + _MOST], before)
            count += self._told(Verb.ANNOUNCE, body, deadline, _number) or 0
        return count

    def withdraw(self, owner: str, deadline: Deadline) -> int:
        self._check()
        return self._told(Verb.WITHDRAW, text(owner), deadline, _number) or 0

    def expect(self, keys: Sequence[ChunkKey], group: str, deadline: Deadline) -> Sequence[bool]:
        self._check()
        count = min(len(keys), _MOST)
        clock = deadline.clock
        while count:
            wait = deadline.remaining()
            body = pack_keys(keys[:count], pack("<d", wait) + text(group))
            # A call that does not wait for a chunk still waits for the answer of a busy node.
            until = Deadline.after(clock, wait + _ANSWER)
            found = self._told(Verb.EXPECT, body, until, lambda reader: reader.data(count))
            # Chunks beyond the request, or without an answer, are not waited for.
            flags = [byte == 1 for byte in found or ()]
            flags += [False] * (len(keys) - len(flags))
            if not all(flags) or deadline.expired:
                return flags
        return []

    def push_to(
        self, peer: str, keys: Sequence[ChunkKey], hold: str, seconds: float, deadline: Deadline
    ) -> str:
        self._check()
        before = pack("<d", seconds) + text(peer) + text(hold)
        name = ""
        for start in range(0, max(1, len(keys)), _MOST):
            body = pack_keys(keys[start : start + _MOST], before)
            name = self._told(Verb.PUSH_TO, body, deadline, Reader.text) or ""
        return name

    def seek(
        self, keys: Sequence[ChunkKey], group: str, peer: str, deadline: Deadline
    ) -> Sequence[bool]:
        self._check()
        count = min(len(keys), _MOST)
        while True:
            wait = deadline.remaining()
            body = pack_keys(keys[:count], pack("<d", wait) + text(group) + text(peer))
            until = Deadline.after(deadline.clock, wait + _ANSWER)
            found = self._told(Verb.SEEK, body, until, lambda reader: reader.data(count)) or b""
            if LATER not in bytes(found) or deadline.expired:
                break
        return [byte == 1 for byte in found] + [False] * (len(keys) - len(found))

    def _told(
        self, verb: Verb, body: bytes, deadline: Deadline, read: Callable[[Reader], T]
    ) -> T | None:
        """Return the node's answer; ``None`` also if it is too old to know the verb."""
        try:
            return self._ask(verb, body, deadline, read)
        except InvalidRequest:
            return None


def _number(reader: Reader) -> int:
    return reader.number("Q")
