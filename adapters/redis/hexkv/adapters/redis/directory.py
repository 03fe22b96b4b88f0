"""A directory in Redis or Valkey: for each chunk a string of the memberships that hold it.

=========================  ======================================================================
``{prefix}e:`` + 24 B      a chunk: 8 bytes of its namespace, 16 of its digest. The marks of
                           memberships, 8 bytes each. Expires after ``ttl``
``{prefix}{m}members``     a hash: by name the mark, the generation and the addresses of a member
``{prefix}{m}:`` name      its sign of life: mark and last report. Expires after three heartbeats
``{prefix}{m}life:`` name  the generation of its last life. Expires after ``ttl``
=========================  ======================================================================

Marks are random, so a server that lost all or some data never names a wrong member. Lost entries
are not located until the node renews its snapshot, which each does after half of ``ttl``.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.redis import _scripts
from hexkv.adapters.redis._bulks import bulks
from hexkv.adapters.redis._replies import error_of
from hexkv.adapters.redis._routes import Cluster, Route
from hexkv.adapters.redis._scripts import GENERATION_DIGITS, MARK_BYTES
from hexkv.adapters.redis._server import Server
from hexkv.adapters.redis._wire import ErrorReply, Reply, garbled, request
from hexkv.ports import (
    KEY_BYTES,
    NAMESPACE_BYTES,
    REPORT_KEYS,
    SILENT_HEARTBEATS,
    ChunkKey,
    Clock,
    Deadline,
    InvalidRequest,
    Member,
    Report,
    StoreError,
    StoreUnreachable,
)

_AT_ONCE = 256
"""Chunks of one script, which blocks the server for a fraction of a millisecond."""

_ASKED = 4096
"""Chunks of one request."""

_VOID = 64
"""Marks remembered as void, to be dropped from chunks that are updated."""


class _Life(NamedTuple):
    """A membership that this process began."""

    generation: int
    mark: bytes
    until: float
    """The time at which its snapshot must be renewed."""


class RedisDirectory:
    """Members and entries as keys of an existing server. Safe from any thread.

    Args:
        route: to the servers.
        clock: for the renewal of snapshots.
        prefix: of every key.
        ttl: seconds after which an unconfirmed entry expires.
        heartbeat_seconds: between two signs of life.
    """

    def __init__(
        self,
        route: Route,
        clock: Clock,
        *,
        prefix: bytes = b"hexkv:",
        ttl: float = 86_400.0,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self._route = route
        self._clock = clock
        self._entry = prefix + b"e:"
        self._members = prefix + b"{m}members"
        self._sign = prefix + b"{m}:"
        self._last = prefix + b"{m}life:"
        self._ttl = ttl
        self._heartbeat_seconds = heartbeat_seconds
        self._lives: dict[str, _Life] = {}
        self._seen: set[bytes] = set()
        """Marks of the members that were alive at the last query."""
        self._void: deque[bytes] = deque(maxlen=_VOID)

    @property
    def heartbeat_seconds(self) -> float:
        return self._heartbeat_seconds

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        mark = secrets.token_bytes(MARK_BYTES)
        where = f"{member.address}\0{member.admin}".encode()
        words = [member.name.encode(), mark, _digits(member.generation), where]
        words += [self._lasting, self._sign, self._seconds]
        if self._script(_scripts.JOIN, member, words, deadline) != 1:
            return False
        if former := self._lives.pop(member.name, None):
            self._void.append(former.mark)
        for batch in snapshot:
            _check(batch)
            self._note(mark, batch, (), deadline)
        renewed = self._clock.now() + self._ttl / 2
        self._lives[member.name] = _Life(member.generation, mark, renewed)
        return True

    def last_life(self, name: str, deadline: Deadline) -> int:
        # A join removes silent nodes from the members, but not from the last lives. Nodes of former
        # versions are only among the members.
        asked = [(b"GET", self._last + name.encode()), (b"HGET", self._members, name.encode())]
        with self._failing(), self._one(self._members, deadline).wire(deadline) as wire:
            wire.send([request(*words) for words in asked], deadline)
            last, noted = wire.reply(deadline), wire.reply(deadline)
        member = noted[MARK_BYTES:][:GENERATION_DIGITS] if isinstance(noted, bytes) else b""
        found = [last if isinstance(last, bytes) else b"", member]
        return max(int(digits) if digits.isdigit() else 0 for digits in found)

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        _check(report.added, report.removed)
        life = self._life(member)
        before = self._alive(member, life, report.sequence, deadline, reported=True)
        if before is None:
            return False
        # The last report is applied again: it may be incomplete if its answer was lost.
        if report.sequence >= before:
            self._note(life.mark, report.added, report.removed, deadline)
        return True

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        life = self._life(member)
        return self._alive(member, life, sequence, deadline, reported=False) is not None

    def leave(self, member: Member, deadline: Deadline) -> None:
        life = self._life(member)
        self._script(_scripts.LEAVE, member, [member.name.encode(), life.mark], deadline)

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        names = self._names(keys)
        with self._failing():
            members, values = self._ask(names, deadline)
        known: dict[bytes | None, tuple[Member, ...]] = {None: ()}
        found = []
        for value in values:
            holders = known.get(value)
            if holders is None:
                marks = _marks(value or b"")
                holders = known[value] = tuple(members[it] for it in marks if it in members)
            found.append(holders)
        return found

    def members(self, deadline: Deadline) -> Sequence[Member]:
        with self._failing():
            server = self._one(self._members, deadline)
            with server.wire(deadline) as wire:
                wire.send([self._members_request()], deadline)
                return list(self._taken(wire.reply(deadline)).values())

    def close(self) -> None:
        self._route.close()

    @property
    def _lasting(self) -> bytes:
        """The milliseconds after which a sign of life expires."""
        return b"%d" % max(1, round(SILENT_HEARTBEATS * self._heartbeat_seconds * 1000))

    @property
    def _seconds(self) -> bytes:
        """The ``ttl``, in whole seconds."""
        return b"%d" % max(1, round(self._ttl))

    def _life(self, member: Member) -> _Life:
        """The membership of *member*; one unknown to servers if there is none, or if it is old."""
        life = self._lives.get(member.name)
        if life is None or life.generation != member.generation or self._clock.now() >= life.until:
            return _Life(member.generation, bytes(MARK_BYTES), 0.0)
        return life

    def _alive(
        self, member: Member, life: _Life, sequence: int, deadline: Deadline, *, reported: bool
    ) -> int | None:
        """Record a sign of life. Return the last report before it; ``None``: it must join again."""
        words = [member.name.encode(), life.mark, b"%d" % sequence, self._lasting, b"%d" % reported]
        reply = self._script(_scripts.ALIVE, member, words, deadline)
        if not isinstance(reply, int):
            raise garbled(repr(reply).encode())
        return reply - 1 if reply else None

    def _script(
        self, script: bytes, member: Member, words: Sequence[bytes], deadline: Deadline
    ) -> Reply:
        """Run a script on the keys of *member*."""
        name = member.name.encode()
        keys = self._members, self._sign + name, self._last + name
        with self._failing(), self._one(self._members, deadline).wire(deadline) as wire:
            wire.send([request(b"EVAL", script, b"3", *keys, *words)], deadline)
            return wire.reply(deadline)

    def _note(
        self,
        mark: bytes,
        added: Sequence[ChunkKey],
        removed: Sequence[ChunkKey],
        deadline: Deadline,
    ) -> None:
        """Add and remove the entries of a membership."""
        names, first = self._names([*added, *removed]), len(added)
        if not names:
            return
        void = b"".join(self._void)
        ttl = self._seconds
        apart = isinstance(self._route, Cluster)
        with self._failing():
            for server, which in self._route.split(names, deadline):
                size = 1 if apart else _AT_ONCE
                parts = [which[i : i + size] for i in range(0, len(which), size)]
                requests = [
                    request(
                        *(b"EVAL", _scripts.ENTRIES, b"%d" % len(part), *(names[i] for i in part)),
                        *(mark, void, ttl, b"%d" % sum(i < first for i in part)),
                    )
                    for part in parts
                ]
                with server.wire(deadline) as wire:
                    for start in range(0, len(requests), _AT_ONCE):
                        together = requests[start : start + _AT_ONCE]
                        wire.send([b"".join(together)], deadline)
                        for _ in together:
                            wire.reply(deadline)

    def _ask(
        self, names: Sequence[bytes], deadline: Deadline
    ) -> tuple[dict[bytes, Member], Sequence[bytes | None]]:
        """Query the members, by their marks, and the marks of each chunk."""
        values: list[bytes | None] = [None] * len(names)
        members: dict[bytes, Member] = {}
        home = self._one(self._members, deadline)
        tasks: dict[Server, Sequence[int]] = dict(self._route.split(names, deadline))
        apart = isinstance(self._route, Cluster)
        for server in dict.fromkeys([home, *tasks]):
            which = tasks.get(server, ())
            with server.wire(deadline) as wire:
                commands = self._members_request() if server is home else b""
                for start in range(0, max(1, len(which)), _ASKED):
                    part = which[start : start + _ASKED]
                    asked = [names[i] for i in part]
                    commands += (_gets(asked) if apart else _mget(asked)) if asked else b""
                    wire.send([commands], deadline)
                    if server is home and not start:
                        members = self._taken(wire.reply(deadline))
                    if asked:
                        found = bulks(wire, len(part), deadline, array=not apart)
                        for i, value in zip(part, found, strict=True):
                            values[i] = value
                    commands = b""
        return members, values

    def _members_request(self) -> bytes:
        return request(b"EVAL", _scripts.MEMBERS, b"1", self._members, self._sign)

    def _taken(self, reply: Reply) -> dict[bytes, Member]:
        """The members of an answer, by their marks."""
        found = {}
        rows = reply if isinstance(reply, list) else [reply]
        for name, noted in zip(rows[::2], rows[1::2], strict=True):
            if not isinstance(name, bytes) or not isinstance(noted, bytes):
                raise garbled(repr(reply).encode())
            digits = noted[MARK_BYTES : MARK_BYTES + GENERATION_DIGITS]
            address, _, admin = noted[MARK_BYTES + GENERATION_DIGITS :].partition(b"\0")
            try:
                member = Member(name.decode(), int(digits), address.decode(), admin.decode())
            except ValueError:
                continue  # not written by a directory
            found[noted[:MARK_BYTES]] = member
        gone = self._seen - found.keys()
        self._void.extend(gone)
        self._seen = set(found)
        return found

    def _names(self, keys: Sequence[ChunkKey]) -> list[bytes]:
        """The name of each chunk in Redis.

        Raises:
            InvalidRequest: a key has the wrong length.
        """
        if any(len(key) != KEY_BYTES for key in keys):
            raise InvalidRequest(f"a key has {KEY_BYTES} bytes")
        start, half = self._entry, NAMESPACE_BYTES
        return [start + key[:8] + key[half : half + 16] for key in keys]

    def _one(self, name: bytes, deadline: Deadline) -> Server:
        ((server, _),) = self._route.split([name], deadline)
        return server

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A context that translates errors of the wire into those of the port.

        Raises:
            StoreUnreachable: no answer came in time, or a server has a transient error.
            StoreError: it refuses.
        """
        try:
            yield
        except OutOfTime as error:
            self._route.doubt()
            raise StoreUnreachable("Redis did not answer in time") from error
        except ErrorReply as error:
            refusal = error_of(error.args[0])
            if error.args[0].startswith((b"MOVED ", b"ASK ")):
                refusal = StoreUnreachable("the cluster's slots are on the move")
            self._route.doubt()
            raise refusal from error
        except StoreError:
            self._route.doubt()
            raise


def _gets(names: Sequence[bytes]) -> bytes:
    """A separate request for each value."""
    return b"".join([b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name) for name in names])


def _mget(names: Sequence[bytes]) -> bytes:
    """A request for all values at once; the names are of one length."""
    head = b"$%d\r\n" % len(names[0])
    return (
        b"*%d\r\n$4\r\nMGET\r\n" % (len(names) + 1) + head + (b"\r\n" + head).join(names) + b"\r\n"
    )


def _marks(value: bytes) -> Iterator[bytes]:
    return (value[i : i + MARK_BYTES] for i in range(0, len(value), MARK_BYTES))


def _digits(generation: int) -> bytes:
    return b"%0*d" % (GENERATION_DIGITS, generation)


def _check(*batches: Sequence[ChunkKey]) -> None:
    if len(list(chain(*batches))) > REPORT_KEYS:
        raise InvalidRequest(f"more than {REPORT_KEYS} keys in a batch")
