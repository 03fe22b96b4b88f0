"""Chunks that are computed at one node and expected at another: the questions between them.

All numbers are little-endian::

    want   whether also chunks here, length of member; member, keys
                                         -> a byte each: 1 for a chunk that will be pushed to it
    come   seconds, lengths of member and hold; both, keys   -> nothing

A node that waits for chunks asks the nodes that have or compute them (``want``), which push them
then. A node that is to receive chunks before it has asked for them is sent ``come``, and asks then.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from struct import Struct, error
from threading import Lock

from hexkv.peers.pushing.announced import Announced
from hexkv.peers.pushing.followed import Followed, Found
from hexkv.peers.pushing.pushes import Pushes
from hexkv.peers.questions import keys_in, pack_member, unpack_member
from hexkv.peers.service import PeerService
from hexkv.ports import (
    KEY_BYTES,
    KIND_BYTES,
    MAX_ANNOUNCED,
    MAX_QUESTION,
    SHARED_OWNER,
    ChunkCache,
    ChunkKey,
    Clock,
    Deadline,
    EngineClosed,
    Executor,
    InvalidRequest,
    Member,
    Peer,
    StoreUnreachable,
)

log = logging.getLogger(__name__)

WANT, COME = b"want", b"come"
_WANT, _COME = Struct("<BH"), Struct("<dHB")

_BESIDE = 4096
"""Bytes of a question that are not its keys."""

_KEYS = (MAX_QUESTION - KIND_BYTES - _BESIDE) // KEY_BYTES

_TELLING = 10.0
"""Seconds to announce to a peer the chunks that will be pushed to it."""

_ASKED = 16
"""Peers that are asked if no name is given."""

_HELD = 3_600.0
"""Seconds that a hold may last."""

_NAMES = 64
"""Unknown names that are remembered, so that each is logged once."""


class Pushing:
    """The pushes of one node, and the pushes to it. Safe from any thread.

    Args:
        announced: the chunks that its clients compute.
        chunks: the cache in which pushed chunks are kept from eviction.
        peers: of the node; it answers their questions from now on.
        clock: the time.
        executor: runs work that waits for peers.
    """

    def __init__(
        self,
        announced: Announced,
        chunks: ChunkCache,
        peers: PeerService,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._announced = announced
        self._chunks = chunks
        self._peers = peers
        self._clock = clock
        self._holds: OrderedDict[ChunkKey, tuple[str, float]] = OrderedDict()
        """By expected chunk, the owner of the pin that is to keep it, and its end."""

        self._offering: list[tuple[str, frozenset[ChunkKey]]] = []
        """Peers, by name, and chunks for them that have not been announced to them yet."""

        self._unknown: set[str] = set()
        self._lock = Lock()
        self._pushes = Pushes(announced, peers.have, peers.push, clock, executor)
        self._followed = Followed(announced, peers.have, self._want, clock, executor)
        peers.register(WANT, self._wanted)
        peers.register(COME, self._come)
        peers.arrived = self._arrived

    @property
    def name(self) -> str:
        """The name of this node for peers."""
        return self._peers.member.name

    def push_to(self, name: str, keys: Sequence[ChunkKey], hold: str, seconds: float) -> None:
        """Push chunks to the peer *name*; see :class:`hexkv.ports.SupportsPushing`."""
        if name and name != self.name and keys:
            offer = name, frozenset(keys)
            with self._lock:
                self._offering.append(offer)

            def announce() -> None:
                try:
                    self._announce(name, keys, hold, seconds)
                finally:
                    with self._lock:
                        self._offering.remove(offer)

            self._followed.run(announce)

    def seek(self, keys: Sequence[ChunkKey], name: str, deadline: Deadline) -> Found:
        """Expect pushes of chunks from the peer *name*, or from some peers if it is empty.

        Returns when those have answered, or at *deadline*.
        """
        peers = self._named(name, deadline)
        if not peers or not keys:
            return Found(complete=bool(peers) or not deadline.expired)
        return self._followed.seek(peers, keys, deadline, here=bool(name))

    def published(self, keys: Sequence[ChunkKey]) -> None:
        """Chunks are here: push those that peers wait for."""
        self._pushes.arrived(keys)

    def close(self) -> None:
        """Stop pushing, and stop expecting pushes of peers."""
        self._pushes.close()
        self._followed.close()

    def _named(self, name: str, deadline: Deadline) -> list[Peer]:
        """Return the peer of that name, or some peers if it is empty."""
        directory = self._peers.directory
        if directory is None:
            return []
        try:
            members = directory.members(deadline)
        except Exception:  # noqa: BLE001 - a directory may be a third party's
            return []
        found = [one for one in members if one.address and one.name != self.name]
        if name:
            found = [one for one in found if one.name == name]
        # Both lives of a restarted node may be known for a while.
        newest = {one.name: one for one in sorted(found, key=lambda one: one.generation)}
        return [_peer(one) for one in newest.values()][:_ASKED]

    def _announce(self, name: str, keys: Sequence[ChunkKey], hold: str, seconds: float) -> None:
        until = Deadline.after(self._clock, _TELLING)
        found = self._named(name, until)
        if not found:
            with self._lock:
                logged = name in self._unknown or len(self._unknown) >= _NAMES
                self._unknown.add(name)
            if not logged:
                log.warning("nothing is pushed to %r: the directory knows no such peer", name)
            return
        member, owner = pack_member(self._peers.member), hold.encode()
        head = _COME.pack(seconds, len(member), len(owner)) + member + owner
        try:
            for some in _parts(keys):
                self._peers.ask(found[0], COME, head + b"".join(some), until)
        except Exception as why:  # noqa: BLE001 - a channel may be a third party's
            log.info("peer %r cannot be notified of chunks for it: %s", name, why)

    def _come(self, body: bytes, who: str, deadline: Deadline) -> bytes:
        """Answer ``come``."""
        del who, deadline
        try:
            seconds, size, length = _COME.unpack_from(body)
        except error as problem:
            raise InvalidRequest("chunks that come from nowhere") from problem
        behind = _COME.size + size
        member = unpack_member(body[_COME.size : behind])
        owner = body[behind : behind + length].decode(errors="replace")
        keys = keys_in(body[behind + length :])
        if not 0 <= seconds <= _HELD or (owner and not owner.startswith(SHARED_OWNER)):
            raise InvalidRequest("a hold without an owner that can end it, or for too long")
        if owner:
            self._hold(keys, owner, seconds)
        here = self._peers.have(keys)
        if missing := [key for key, is_here in zip(keys, here, strict=True) if not is_here]:
            self._followed.follow(_peer(member), missing)
        return b""

    def _hold(self, keys: Sequence[ChunkKey], owner: str, seconds: float) -> None:
        until = self._clock.now() + seconds
        with self._lock:
            for key in keys:
                self._holds.pop(key, None)
                self._holds[key] = owner, until
            while len(self._holds) > MAX_ANNOUNCED:
                self._holds.popitem(last=False)
        self._pin(keys, owner, seconds)

    def _pin(self, keys: Sequence[ChunkKey], owner: str, seconds: float) -> None:
        """Pin those of *keys* that are here."""
        try:
            self._chunks.pin(owner, keys, seconds)
        except EngineClosed:
            return

    def _arrived(self, keys: Sequence[ChunkKey]) -> None:
        """Pin chunks that peers have pushed for their owners, and end waits for them."""
        now = self._clock.now()
        with self._lock:
            held = [self._holds.pop(key, None) for key in keys]
        by_owner: dict[tuple[str, float], list[ChunkKey]] = {}
        for key, hold in zip(keys, held, strict=True):
            if hold is not None and hold[1] > now:
                by_owner.setdefault(hold, []).append(key)
        for (owner, until), due in by_owner.items():
            self._pin(due, owner, until - now)
        self._announced.published(keys)
        self._pushes.arrived(keys)

    def _want(
        self,
        peer: Peer,
        keys: Sequence[ChunkKey],
        here: bool,
        deadline: Deadline,
    ) -> list[bool]:
        """Ask *peer* to push chunks here."""
        member = pack_member(self._peers.member)
        head = _WANT.pack(here, len(member)) + member
        flags: list[bool] = []
        for some in _parts(keys):
            answer = self._peers.ask(peer, WANT, head + b"".join(some), deadline)
            if len(answer) != len(some) or answer.strip(b"\0\1"):
                raise StoreUnreachable("a peer does not say so of each chunk")
            flags += map(bool, answer)
        return flags

    def _wanted(self, body: bytes, who: str, deadline: Deadline) -> bytes:
        """Answer ``want``."""
        del who, deadline
        try:
            here, size = _WANT.unpack_from(body)
        except error as problem:
            raise InvalidRequest("no question about chunks") from problem
        behind = _WANT.size + size
        member = unpack_member(body[_WANT.size : behind])
        keys = keys_in(body[behind:])
        # A short prompt is computed before its decoder's node learns of it, which then asks of its
        # own accord.
        here = bool(here) or self._offers(member.name, keys)
        return bytes(self._pushes.want(_peer(member), keys, here=here))

    def _offers(self, name: str, keys: Sequence[ChunkKey]) -> bool:
        """True while an announcement of any of *keys* to the peer *name* is under way."""
        with self._lock:
            return any(peer == name and not some.isdisjoint(keys) for peer, some in self._offering)


def _peer(member: Member) -> Peer:
    return Peer(member.address, member.generation)


def _parts(keys: Sequence[ChunkKey]) -> list[Sequence[ChunkKey]]:
    return [keys[at : at + _KEYS] for at in range(0, len(keys), _KEYS)]
