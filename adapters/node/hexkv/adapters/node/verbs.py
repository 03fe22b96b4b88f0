"""What a node does for each verb. A table: another module may add to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from struct import pack, unpack
from typing import NamedTuple, Protocol

from hexkv.adapters.node.granted import Grant, Granted
from hexkv.adapters.node.listing import MOST, pack_listing
from hexkv.adapters.node.wire import (
    Chunk,
    Head,
    Malformed,
    Reader,
    Space,
    State,
    Status,
    Verb,
    Wanted,
    pack_chunks,
    pack_words,
    read_wanted,
)
from hexkv.plugins.served import ServedChunks
from hexkv.ports import (
    KEY_BYTES,
    MAGIC,
    NAMESPACE_BYTES,
    ChunkKey,
    ChunkSpec,
    Clock,
    Deadline,
    Hold,
    InvalidRequest,
    Lease,
    Publishing,
    Reason,
    frame_bytes,
)

_UNSEALED = bytes(len(MAGIC))
_MOST_PINS = 1 << 16
_LONGEST_PIN = 366 * 86_400.0
_MOST_PREFIXES = 1 << 16
_MISSING = Chunk(State.MISSING, Reason.REFUSED, 0, 0)


class Request(NamedTuple):
    """A request that was read."""

    head: Head
    body: bytes
    grant: Grant | None
    """What it leases, of the verbs that do."""


class Client(Protocol):
    """The session of a client, as verbs see it."""

    name: str
    served: ServedChunks
    clock: Clock
    granted: Granted
    spaces: dict[int, Space]
    met: set[tuple[int, bytes]]
    pinned: set[str]
    trusted: bool

    def send(self, asked: Head, status: Status, body: bytes = b"") -> None:
        """Answer a request."""
        ...

    def until(self, asked: Head) -> Deadline:
        """When the client expects the last word on a request."""
        ...


def _ping(session: Client, asked: Request) -> None:
    session.send(asked.head, Status.DONE)


def _match(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    found = session.served.chunks.match(keys, session.until(asked.head))
    session.send(asked.head, Status.DONE, pack_words(found))


def _hold(session: Client, asked: Request) -> None:
    wanted, specs, grant = _wanted(session, asked)
    until = session.until(asked.head)
    sizes = [frame_bytes(spec.raw_bytes) for spec in specs]
    room = session.granted.reserve(grant, sizes)
    owner = f"{session.name} {wanted.owner}"
    hold = session.served.chunks.hold(specs[:room], owner, until)
    if not session.granted.held(grant, hold):
        return
    late = [_MISSING] * (len(specs) - room)
    if not hold.done:
        session.send(asked.head, Status.BEGUN, pack_chunks([*_so_far(hold), *late]))
        hold.wait(until)
    leases = _in_pool(session, specs, hold.leases, owner)
    reasons, origins = hold.reasons, hold.origins
    if not session.granted.settle(asked.head.request, grant, leases, fresh=False) and any(leases):
        return  # given back meanwhile, so nobody asks any more
    chunks = [
        Chunk(State.MISSING, reasons[i] or Reason.REFUSED, 0, 0)
        if lease is None
        else _here(session, lease, origins[i])
        for i, lease in enumerate(leases)
    ]
    session.send(asked.head, Status.DONE, pack_chunks([*chunks, *late]))


def _allocate(session: Client, asked: Request) -> None:
    wanted, specs, grant = _wanted(session, asked)
    if session.served.frozen:
        specs = []  # what could not be published need not be copied
    room = session.granted.reserve(grant, [frame_bytes(spec.raw_bytes) for spec in specs])
    for number, key in zip(wanted.spaces, wanted.keys, strict=True):
        pair = number, key[:NAMESPACE_BYTES]
        if pair not in session.met and len(session.met) < _MOST_PREFIXES:
            session.met.add(pair)
            session.served.meet(session.spaces[number].identity, pair[1])
    owner = f"{session.name} {wanted.owner}"
    leases = session.served.chunks.allocate(specs[:room], owner, session.until(asked.head))
    here = [_here(session, lease, "") for lease in leases]
    if session.granted.settle(asked.head.request, grant, leases, fresh=True) or not leases:
        session.send(asked.head, Status.DONE, pack_chunks(here))


def _publish(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    behind = reader.number("B")
    after = ChunkKey(reader.data(KEY_BYTES)) if behind else None
    count = reader.count(12)
    requests, places = reader.column("Q", count), reader.column("I", count)
    reader.end()
    with ExitStack() as mine:
        leases: list[Lease] = []
        for request, place in zip(requests, places, strict=True):
            found = session.granted.find(request, place)
            if found is None:
                raise InvalidRequest("a lease that this client does not have")
            grant, lease = found
            # A share: the client may give back its own in the middle of this.
            leases.append(mine.enter_context(lease.share(session.name)))
            if place in grant.fresh:
                # What stands there is the client's: the node writes its headers itself.
                grant.fresh.discard(place)
                lease.frame[: len(MAGIC)] = _UNSEALED
        until = session.until(asked.head)
        publishing = session.served.chunks.publish(leases, after, until)
    if not publishing.done:
        session.send(asked.head, Status.BEGUN, _tiers(publishing, count))
        publishing.wait(until)
    session.send(asked.head, Status.DONE, _tiers(publishing, count))


def _forget(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    gone = session.served.chunks.forget(keys, session.until(asked.head))
    session.send(asked.head, Status.DONE, pack("<Q", gone))


def _pin(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    (seconds,) = unpack("<d", reader.data(8))
    owner = f"{session.name} {reader.text()}"
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    if not 0 <= seconds <= _LONGEST_PIN:
        raise InvalidRequest("a pin lasts from no time to a year")
    if len(session.pinned) >= _MOST_PINS:
        raise InvalidRequest("too many owners of pins")
    session.pinned.add(owner)
    count = session.served.chunks.pin(owner, keys, seconds or None)
    session.send(asked.head, Status.DONE, pack("<Q", count))


def _unpin(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    owner = f"{session.name} {reader.text()}"
    reader.end()
    count = session.served.chunks.unpin(owner)
    session.pinned.discard(owner)
    session.send(asked.head, Status.DONE, pack("<Q", count))


def _flush(session: Client, asked: Request) -> None:
    done = session.served.chunks.flush(session.until(asked.head))
    session.send(asked.head, Status.DONE, pack("<Q", done))


def _clear(session: Client, asked: Request) -> None:
    said = Reader(asked.body).json()
    try:
        assert isinstance(said, dict)  # noqa: S101 - what is caught below
        prefixes = said["prefixes"] and [bytes.fromhex(prefix) for prefix in said["prefixes"]]
        tiers = said["tiers"] and [str(tier) for tier in said["tiers"]]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise Malformed("nothing that could be cleared") from error
    cleared = session.served.clear(prefixes, tiers, session.until(asked.head))
    session.send(asked.head, Status.DONE, json.dumps(asdict(cleared)).encode())


def _health(session: Client, asked: Request) -> None:
    said = asdict(session.served.health())
    # By the names that the client gave; of what others hold it is told how much.
    mine = f"{session.name} "
    said["leases"] = {owner.removeprefix(mine): n for owner, n in said["leases"].items()}
    for name in ("pins", "pin_seconds"):
        ours = said[name].items()
        said[name] = {o.removeprefix(mine): n for o, n in ours if o.startswith(mine)}
    session.send(asked.head, Status.DONE, json.dumps(said, default=dict).encode())


def _list(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    after = ChunkKey(reader.data(KEY_BYTES)) if reader.number("B") else None
    reader.end()
    if not session.trusted:
        raise InvalidRequest("only the node's own user and root may list what it holds")
    found = session.served.in_memory(after, MOST)
    session.send(asked.head, Status.DONE, pack_listing(found))


VERBS: dict[int, Callable[[Client, Request], None]] = {
    Verb.PING: _ping,
    Verb.MATCH: _match,
    Verb.HOLD: _hold,
    Verb.ALLOCATE: _allocate,
    Verb.PUBLISH: _publish,
    Verb.FORGET: _forget,
    Verb.PIN: _pin,
    Verb.UNPIN: _unpin,
    Verb.FLUSH: _flush,
    Verb.CLEAR: _clear,
    Verb.HEALTH: _health,
    Verb.LIST: _list,
}


def _wanted(session: Client, asked: Request) -> tuple[Wanted, list[ChunkSpec], Grant]:
    """The chunks of a request that leases.

    Raises:
        Malformed: they are of a namespace that was not said.
        InvalidRequest: one is larger than the pool.
    """
    wanted = read_wanted(asked.body)
    if asked.grant is None:
        raise Malformed("a request without a grant")
    spaces = session.spaces
    try:
        specs = [
            ChunkSpec(
                key,
                spaces[number].identity,
                spaces[number].layout,
                tokens,
                spaces[number].serde,
                None if position < 0 else position,
            )
            for key, number, tokens, position in zip(*wanted[1:], strict=True)
        ]
    except KeyError as error:
        raise Malformed("a namespace that was not said") from error
    if not session.served.fits(max((spec.raw_bytes for spec in specs), default=0)):
        raise InvalidRequest("a chunk is larger than the pool")
    return wanted, specs, asked.grant


def _here(session: Client, lease: Lease, origin: str) -> Chunk:
    return Chunk(State.HERE, origin, session.served.place(lease) or 0, lease.size)


def _so_far(hold: Hold) -> list[Chunk]:
    """What is known of a hold under way; where it arrived is said at its end."""
    return [
        Chunk(State.COMING, "", 0, 0) if reason is None else Chunk(State.MISSING, reason, 0, 0)
        for reason in hold.reasons
    ]


def _in_pool(
    session: Client, specs: Sequence[ChunkSpec], leases: Sequence[Lease | None], owner: str
) -> list[Lease | None]:
    """*leases*; what lies in a store's own memory, which no client has mapped, is copied."""
    found: list[Lease | None] = []
    for spec, lease in zip(specs, leases, strict=False):
        mine = lease
        if lease is not None and session.served.place(lease) is None:
            now = Deadline(session.clock, 0.0)
            copies = session.served.chunks.allocate([spec], owner, now)
            mine = copies[0] if copies else None
            if mine is not None:
                mine.payload[:] = lease.payload
            lease.release()
        found.append(mine)
    return found


def _tiers(publishing: Publishing, count: int) -> bytes:
    """By tier, a byte for each of *count* chunks."""
    rows = publishing.tiers
    parts = [bytes([len(rows)])]
    for name, row in rows.items():
        data = name.encode()[:255]
        parts += [bytes([len(data)]), data, bytes(map(bool, row)).ljust(count, b"\0")[:count]]
    return b"".join(parts)
