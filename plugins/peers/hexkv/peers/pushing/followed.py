"""Chunks that peers will push here, followed until they arrive or will not come.

They are announced here in the name of the peer, so clients that expect a chunk wait for it
independent of the node that computes it. The peer is queried repeatedly, which also renews its
record of the demand here. Chunks that it no longer confirms, or not in time, are not expected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import compress
from threading import Condition
from typing import NamedTuple

from hexkv.peers.pushing.announced import PEERS, Announced
from hexkv.ports import ChunkKey, Clock, Deadline, Executor, Peer

Have = Callable[[Sequence[ChunkKey]], Sequence[bool]]
Want = Callable[[Peer, Sequence[ChunkKey], bool, Deadline], Sequence[bool]]
"""Requests chunks from a peer: those that it computes, and with True those that it has, too."""

_ASKING, _ASKERS = "asking peers", 8
_LOOKING = "following peers"

_AGAIN = 0.25
"""Seconds between two queries to a peer."""

_LASTS = 5.0
"""Seconds for which a peer's last answer is valid; it has as long to answer."""


class Found(NamedTuple):
    """The answers of peers about chunks."""

    coming: Collection[ChunkKey] = ()
    """Chunks that a peer pushes. Some may be here by now."""

    complete: bool = True
    """False if an answer is missing, which a later query may bring."""


class Followed:
    """The chunks that peers push here. Safe from any thread.

    Args:
        announced: the announcements to which they are added.
        have: returns True for each chunk that own tiers have.
        want: requests chunks from a peer.
        clock: the time.
        executor: runs queries.
    """

    def __init__(
        self, announced: Announced, have: Have, want: Want, clock: Clock, executor: Executor
    ) -> None:
        self._announced = announced
        self._have = have
        self._want = want
        self._clock = clock
        self._executor = executor
        self._peers: dict[Peer, bool] = {}
        """Followed peers; True while one is being queried."""

        self._changed = Condition()
        self._looking = False
        self._closed = False

    def seek(
        self, peers: Sequence[Peer], keys: Sequence[ChunkKey], deadline: Deadline, *, here: bool
    ) -> Found:
        """Request chunks from peers, and follow the peers that will push some.

        Returns once all of them have answered, or at *deadline*.
        """
        answers: list[Sequence[ChunkKey] | None] = []

        def ask(peer: Peer) -> None:
            said = self._ask(peer, keys, deadline, here=here)
            with self._changed:
                answers.append(said)
                self._changed.notify_all()

        self.run(*(partial(ask, peer) for peer in peers))
        with self._changed:
            self._executor.wait(
                self._changed, lambda: self._closed or len(answers) == len(peers), deadline
            )
            coming = frozenset(key for said in answers for key in said or ())
            complete = len(answers) == len(peers) and None not in answers
            return Found(coming, self._closed or complete)

    def run(self, *work: Callable[[], None]) -> None:
        """Run work that may wait for a peer, on workers."""
        if self._closed:
            return
        self._executor.open(_ASKING, _ASKERS)
        for one in work:
            self._executor.run(_ASKING, one)

    def follow(self, peer: Peer, keys: Sequence[ChunkKey]) -> None:
        """Expect chunks that *peer* offers, and request them from it, without waiting."""
        # Now, not once it has answered: a decoder may query in between, and would compute.
        self._announced.announce(_client(peer), "", PEERS, keys, _LASTS)
        self._follow(peer)
        self.run(partial(self._again, peer, keys))

    def close(self) -> None:
        """End all queries."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._executor.close(_ASKING)
        self._executor.close(_LOOKING)

    def _ask(
        self, peer: Peer, keys: Sequence[ChunkKey], until: Deadline, *, here: bool
    ) -> Sequence[ChunkKey] | None:
        """Return the chunks that a peer pushes; None if it did not answer in time."""
        try:
            flags = self._want(peer, keys, here, until)
        except Exception:  # noqa: BLE001 - a channel may be third-party code; the worker goes on
            # A machine that is only busy may answer next time.
            if until.expired:
                return None
            flags = [False] * len(keys)
        client = _client(peer)
        coming = [key for key, comes in zip(keys, flags, strict=True) if comes]
        gone = [key for key, comes in zip(keys, flags, strict=True) if not comes]
        self._announced.end(client, gone)
        if coming:
            self._announced.announce(client, "", PEERS, coming, _LASTS)
            # Some may have come before they were announced.
            here_by_now = self._have(coming)
            self._announced.end(client, list(compress(coming, here_by_now)))
            self._follow(peer)
        return coming

    def _follow(self, peer: Peer) -> None:
        with self._changed:
            self._peers.setdefault(peer, False)
            if self._looking or self._closed:
                return
            self._looking = True
        self._executor.open(_LOOKING, 1)
        self._executor.run(_LOOKING, self._look)

    def _look(self) -> None:
        """Query each followed peer again, as long as there is one."""
        while True:
            until = Deadline.after(self._clock, _AGAIN)
            with self._changed:
                self._executor.wait(self._changed, lambda: self._closed, until)
                for peer, asked in list(self._peers.items()):
                    if asked:
                        continue
                    if keys := self._announced.of_client(_client(peer)):
                        self._peers[peer] = True
                        self.run(partial(self._again, peer, keys))
                    else:
                        del self._peers[peer]
                        self._announced.gone(_client(peer))
                if self._closed or not self._peers:
                    self._looking = False
                    return

    def _again(self, peer: Peer, keys: Sequence[ChunkKey]) -> None:
        try:
            self._ask(peer, keys, Deadline.after(self._clock, _LASTS), here=True)
        finally:
            with self._changed:
                if peer in self._peers:
                    self._peers[peer] = False


def _client(peer: Peer) -> str:
    return f"peer {peer.address} {peer.generation}"
