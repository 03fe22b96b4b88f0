"""Peers that lie: what leaves a process of the tests, behind its own checks, while it is told to.

The process is a real one otherwise: it joins a directory, stores and lends.
"""

import random

from hexkv.adapters.net.peers import direct_session, session
from hexkv.adapters.net.peers.wire import ABSENT, ELSEWHERE, REFS
from hexkv.ports import PAGE

PEERS = ("other bytes", "other chunks", "other sizes", "stale generation")
"""What a peer may lie about."""


class LyingPeer:
    """Has this process's sessions with peers lie. Not to be taken back but by :meth:`lie`."""

    def __init__(self, service):
        self._service = service
        self._about = ""
        self._random = random.Random(0)
        self._lent = []
        self._part_of, self._pack_group = session.part_of, session.pack_group
        self._greet = session.PeerSession._greet
        self._lease, self._starts = direct_session.DirectSession._lease, []
        session.part_of, session.pack_group = self._part, self._group
        session.PeerSession._greet = lambda one: self._greeting(one)
        direct_session.DirectSession._lease = lambda *asked: [
            self._row(*REFS.unpack(row)) for row in self._lease(*asked)
        ]

    def lie(self, about):
        """Lie about that from now on; tell the truth if it is empty."""
        self._about = about
        # A connection that was greeted is of the generation that it was greeted with.
        server = self._service._channel._server
        for connection in list(server._admission._clients):
            connection.stream.abort()

    def _part(self, lease, start, size):
        part = self._part_of(lease, start, size)
        if part is None or not self._about:
            return part
        if self._about == "other bytes":
            return self._damaged(part)
        if self._about == "other chunks":
            self._lent = [*self._lent[-16:], bytes(part)]
            return memoryview(self._random.choice(self._lent[:-1] or [bytes(len(part))]))
        if self._about == "other sizes":
            page = bytes(PAGE)
            return self._random.choice([part, part[:-PAGE], memoryview(bytes(part) + page)])
        return part

    def _row(self, key, size, start):
        """Where a chunk is said to lie, to who copies it out of this process's memory."""
        if size == ABSENT or start == ELSEWHERE:
            return REFS.pack(key, size, start)
        if self._about == "other bytes":
            start = self._random.choice([ELSEWHERE, start + PAGE])  # what is sent is damaged
        elif self._about == "other chunks":
            self._starts = [*self._starts[-16:], start]
            start = self._random.choice(self._starts[:-1] or [0])
        elif self._about == "other sizes":
            size = self._size(size)
        return REFS.pack(key, size, start)

    def _damaged(self, part):
        """One bit of it is another one, anywhere; or all behind its first page."""
        data = bytearray(part)
        if self._random.random() < 0.5:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        else:
            data[PAGE:] = self._random.randbytes(max(0, len(data) - PAGE))
        return memoryview(data)

    def _group(self, rows):
        return self._pack_group([(key, self._size(size)) for key, size in rows])

    def _size(self, size):
        if self._about != "other sizes" or size == session.ABSENT:
            return size
        wrong = [size, size + PAGE, size - PAGE, size + 1, 0, 1 << 40, session.ABSENT - 1]
        return self._random.choice(wrong)

    def _greeting(self, one):
        if self._about == "stale generation":
            one._generation -= 1
        return self._greet(one)
