"""The reports of tiers and engines, queued for the thread that publishes them. Never waits.

Of the tiers only the state is kept, not its changes: a chunk that comes and goes before the thread
reads the queue is not published, and a queue that outgrows its bytes is replaced by the set of all
held chunks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from socket import socketpair
from threading import Lock
from typing import TYPE_CHECKING

from hexkv.adapters.observe.blocks import TOKEN_BYTES, Event
from hexkv.adapters.observe.ledger import AnnouncedChunks, Medium, NewTokens
from hexkv.plugins.observing.held import ChangeQueue, HeldChunks
from hexkv.ports import CacheEvent, ContentFeed, NamedPrompt

_TOKENS_WAITING = 16 << 20
"""Bytes of tokens that may wait; chunks beyond that are not announced."""

_CHANGES_WAITING = 16 << 20
_MEMORY, _ANY = "CPU", "DISK"
"""The routers' words for host memory, and for everything slower. They ignore other words silently.
"""


class Feed:
    """See :class:`hexkv.ports.ContentFeed`. One thread calls :meth:`take`.

    Routers follow a prompt from medium to medium in one direction: from a block in memory to one on
    a disk, never back. So if there are slower tiers, too, ``DISK`` means all held chunks.
    """

    def __init__(self, tiers: Mapping[str, bool], *, block: int, model: str, limit: int) -> None:
        """Follow *tiers*, True for those in memory; the others as in :class:`AnnouncedChunks`."""
        self._tiers = tiers
        names = [
            *([_MEMORY] if any(tiers.values()) else []),
            *([_ANY] if not all(tiers.values()) else []),
        ]
        self._held = {name: HeldChunks() for name in names}
        self._queues = [ChangeQueue(_CHANGES_WAITING) for _ in names]
        for queue in self._queues:
            queue.begin()
        media = [Medium(name, held) for name, held in self._held.items()]
        self.ledger = AnnouncedChunks(media, block=block, model=model, limit=limit)
        self._lock = Lock()
        self._tokens: deque[NewTokens] = deque()
        self._waiting = 0
        self.dropped = 0
        """Chunks whose tokens did not fit the queue."""

        self.passed_over: Counter[str] = Counter()
        """Chunks named in namespaces that are not announced, by reason."""

        self.woken, self._wake = socketpair()
        self._wake.setblocking(False)
        self.woken.setblocking(False)
        self._signalled = False

    @property
    def held(self) -> Mapping[str, int]:
        """Chunks that each medium has."""
        return {name: len(held) for name, held in self._held.items()}

    def emit(self, event: CacheEvent) -> None:
        in_memory = self._tiers.get(event.tier, False)
        for (name, held), queue in zip(self._held.items(), self._queues, strict=True):
            if in_memory or name == _ANY:
                held.apply(event, (queue,))
        self.wake()

    def named(self, prompt: NamedPrompt) -> None:
        keys = prompt.keys
        if not keys or self.ledger.knows(keys):
            return
        if why := self.ledger.refuses(prompt.identity):
            with self._lock:
                self.passed_over[why] += len(keys)
            return
        first = next((i for i, key in enumerate(keys) if not self.ledger.knows((key,))), 0)
        start = prompt.ends[first - 1] if first else 0
        new = NewTokens(
            prompt.identity,
            tuple(keys[first:]),
            tuple(end - start for end in prompt.ends[first:]),
            bytes(prompt.tokens[start * TOKEN_BYTES : prompt.ends[-1] * TOKEN_BYTES]),
            keys[first - 1] if first else prompt.after,
        )
        with self._lock:
            if self._waiting + new.size > _TOKENS_WAITING:
                self.dropped += len(new.keys)
                return
            self._tokens.append(new)
            self._waiting += new.size
        self.wake()

    def take(self) -> list[Event]:
        """Return the events for all that has come."""
        with suppress(BlockingIOError):
            self.woken.recv(64)
        self._signalled = False
        changes = []
        for held, queue in zip(self._held.values(), self._queues, strict=True):
            if queue.following:
                changes.append(held.take(queue))
            else:  # it overflowed: chunks not in the snapshot are gone
                keys = held.snapshot(queue)
                changes.append((keys, self.ledger.missing(len(changes), keys)))
        # After the changes: a caller names a chunk's tokens before it stores the chunk.
        with self._lock:
            tokens, self._tokens, self._waiting = self._tokens, deque(), 0
        events: list[Event] = []
        for number, (_, gone) in enumerate(changes):
            events += self.ledger.change(number, (), gone)
        for new in tokens:
            events += self.ledger.name(new)
        for number, (added, _) in enumerate(changes):
            events += self.ledger.change(number, added, ())
        if any(len(queue) for queue in self._queues):
            self.wake()
        return events

    def close(self) -> None:
        """Ignore further signals."""
        self._signalled = True
        self.woken.close()
        self._wake.close()

    def wake(self) -> None:
        """Wake the thread that calls :meth:`take`."""
        if not self._signalled:
            self._signalled = True
            with suppress(OSError):
                self._wake.send(b".")


if TYPE_CHECKING:

    def _is_a_feed(feed: Feed) -> ContentFeed:
        return feed
