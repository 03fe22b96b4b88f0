"""The table of what a node does for each verb; another module may add to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from struct import pack, unpack
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.asked import Request
from hexkv.adapters.net.rpc.wire import Head, Status
from hexkv.adapters.node.client.telling import read_named
from hexkv.adapters.node.listing import MOST, pack_listing
from hexkv.adapters.node.server.announced import announce, expect, push_to, seek, withdraw
from hexkv.adapters.node.server.asked import Client
from hexkv.adapters.node.server.granted import Grant
from hexkv.adapters.node.wire import (
    Chunks,
    Reader,
    State,
    Verb,
    Wanted,
    pack_chunks,
    pack_words,
    read_release,
    read_space,
    read_wanted,
)
from hexkv.plugins.threads import step_aside
from hexkv.ports import (
    KEY_BYTES,
    MAGIC,
    NAMESPACE_BYTES,
    SHARED_OWNER,
    ChunkKey,
    ChunkSpec,
    Deadline,
    Hold,
    InvalidRequest,
    Lease,
    Publishing,
    Reason,
    frame_bytes,
    release_all,
    share_all,
)

_UNSEALED = bytes(len(MAGIC))
_MOST_PINS = 1 << 16
_LONGEST_PIN = 366 * 86_400.0
_MOST_PREFIXES = 1 << 16
_LONGEST_SHARED = 3_600.0


class _Leasing(NamedTuple):
    """A request that leases."""

    wanted: Wanted
    owner: str
    specs: Sequence[ChunkSpec]
    frames: Sequence[int]
    """Bytes of the frame of each chunk."""

    grant: Grant


def _ping(session: Client, asked: Request) -> None:
    session.send(asked.head, Status.DONE)


def _match(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    found = session.served.chunks.match(keys, session.until(asked.head))
    session.send(asked.head, Status.DONE, pack_words(found))


def _hold(session: Client, asked: Request) -> None:
    _, owner, specs, frames, grant = _wanted(session, asked)
    until = session.until(asked.head)
    room = session.granted.reserve(grant, frames)
    hold = session.served.hold(specs[:room], owner, until)
    if not session.granted.held(grant, hold):
        return
    if not hold.done:
        session.send(asked.head, Status.BEGUN, pack_chunks(_so_far(hold, len(specs))))
        hold.wait(until)
    arrived, reasons = hold.leases, hold.reasons
    gone = len(arrived) < len(reasons)  # given back during the wait, or past its time
    if not gone:
        leases, places = _in_pool(session, specs, arrived, owner)
        chunks = _chunks(leases, places, reasons, hold.origins, len(specs))
        settled = session.granted.settle(asked.head.request, grant, leases, fresh=False)
        gone = not settled and any(leases)
    if gone:  # answered anyway: the client of one past its time may wait for it
        chunks = _chunks([], [], [], [], len(specs))
    session.send(asked.head, Status.DONE, pack_chunks(chunks))


def _allocate(session: Client, asked: Request) -> None:
    wanted, owner, specs, frames, grant = _wanted(session, asked)
    # A chunk that could not be published need not be copied.
    room = 0 if session.served.frozen else session.granted.reserve(grant, frames)
    for number, key in zip(wanted.spaces, wanted.keys, strict=True):
        pair = number, key[:NAMESPACE_BYTES]
        if pair not in session.met and len(session.met) < _MOST_PREFIXES:
            session.met.add(pair)
            session.served.meet(session.spaces[number].identity, pair[1])
    leases = session.served.chunks.allocate(specs[:room], owner, session.until(asked.head))
    places = session.served.places(leases)
    chunks = _chunks(leases, places, [None] * len(leases), [""] * len(leases), len(leases))
    if session.granted.settle(asked.head.request, grant, leases, fresh=True) or not leases:
        session.send(asked.head, Status.DONE, pack_chunks(chunks))


def _publish(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    behind = reader.number("B")
    after = ChunkKey(reader.data(KEY_BYTES)) if behind else None
    count = reader.count(12)
    requests, places = reader.column("Q", count), reader.column("I", count)
    reader.end()
    found = session.granted.find(requests, places)
    if found is None:
        raise InvalidRequest("a lease that this client does not have")
    # Shares: the client may give back its own in the middle of this.
    leases = list(share_all([lease for _, lease in found], session.name))
    try:
        for (grant, _), place, lease in zip(found, places, leases, strict=True):
            if place in grant.fresh:
                # The bytes there are the client's: the node writes its headers itself.
                lease.frame[: len(MAGIC)] = _UNSEALED
                grant.fresh.discard(place)
        until = session.until(asked.head)
        publishing = session.served.chunks.publish(leases, after, until)
        session.served.published([lease.spec.key for lease in leases if lease.spec])
    finally:
        release_all(leases)
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
    owner = _owner(session, reader.text())
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    shared = owner.startswith(SHARED_OWNER)
    if not 0 <= seconds <= (_LONGEST_SHARED if shared else _LONGEST_PIN):
        raise InvalidRequest("a pin lasts from no time to a year, to an hour if it is shared")
    if len(session.pinned) >= _MOST_PINS:
        raise InvalidRequest("too many owners of pins")
    if not shared:
        session.pinned.add(owner)
    count = session.served.chunks.pin(owner, keys, seconds or None)
    session.send(asked.head, Status.DONE, pack("<Q", count))


def _unpin(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    owner = _owner(session, reader.text())
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
        assert isinstance(said, dict)  # noqa: S101 - caught below
        prefixes = said["prefixes"] and [bytes.fromhex(prefix) for prefix in said["prefixes"]]
        tiers = said["tiers"] and [str(tier) for tier in said["tiers"]]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise BadMessage("nothing that could be cleared") from error
    cleared = session.served.clear(prefixes, tiers, session.until(asked.head))
    session.send(asked.head, Status.DONE, json.dumps(asdict(cleared)).encode())


def _health(session: Client, asked: Request) -> None:
    said = asdict(session.served.health())
    del said["why"]  # of a host, never of a node, and older engines do not know it
    # By the names that the client gave; of other clients only the number of leases.
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
        raise InvalidRequest("only the node's own user and root may list its chunks")
    found = session.served.in_memory(after, MOST)
    session.send(asked.head, Status.DONE, pack_listing(found))


def _named(session: Client, asked: Request) -> None:
    prompts = session.served.prompts
    if prompts is not None and not prompts.named(read_named(asked.body)):
        raise InvalidRequest("the chunks are not named by these tokens, or by rules of others")
    session.send(asked.head, Status.DONE, pack("<Q", prompts is not None))


def _keep(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    request = reader.number("Q")
    reader.end()
    session.send(asked.head, Status.DONE, pack("<Q", session.granted.keep(request)))


def _space(session: Client, asked: Head, body: bytes) -> None:
    del asked
    number, space = read_space(body)
    session.spaces[number] = space
    session.met = {pair for pair in session.met if pair[0] != number}


def _release(session: Client, asked: Head, body: bytes) -> None:
    del asked
    for request, place in read_release(body):
        session.granted.release(request, place)


def _lasts(session: Client, asked: Head, body: bytes) -> None:
    reader = Reader(body)
    session.granted.last(reader.number("Q"), asked.seconds)
    reader.end()


TOLD: dict[int, Callable[[Client, Head, bytes], None]] = {
    Verb.SPACE: _space,
    Verb.RELEASE: _release,
    Verb.LASTS: _lasts,
}
"""Messages that are not answered. Handled in order, by the thread that reads."""

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
    Verb.NAMED: _named,
    Verb.ANNOUNCE: announce,
    Verb.WITHDRAW: withdraw,
    Verb.EXPECT: expect,
    Verb.PUSH_TO: push_to,
    Verb.SEEK: seek,
    Verb.KEEP: _keep,
}


AT_ONCE = frozenset(
    (Verb.PING, Verb.MATCH, Verb.HOLD, Verb.ALLOCATE, Verb.PUBLISH, Verb.UNPIN, Verb.KEEP)
)
"""Verbs that are short unless they wait or step aside, which passes the reading on."""


def _owner(session: Client, name: str) -> str:
    """Return the name of a pin's owner among the owners of all clients."""
    return name if name.startswith(SHARED_OWNER) else f"{session.name} {name}"


def _wanted(session: Client, asked: Request) -> _Leasing:
    """Return the parsed form of a request that leases.

    Raises:
        BadMessage: chunks are of a namespace that was not defined.
        InvalidRequest: one is larger than the pool.
    """
    wanted = read_wanted(asked.body)
    if asked.grant is None:
        raise BadMessage("a request without a grant")
    try:
        spaces = {number: session.spaces[number] for number in set(wanted.spaces)}
    except KeyError as error:
        raise BadMessage("a namespace that was not sent") from error
    specs = [
        ChunkSpec(key, space.identity, space.layout, tokens, space.serde, None if at < 0 else at)
        for key, space, tokens, at in zip(
            wanted.keys,
            map(spaces.__getitem__, wanted.spaces),
            wanted.tokens,
            wanted.positions,
            strict=True,
        )
    ]
    kinds = list(zip(wanted.spaces, wanted.tokens, strict=True))
    raw = {kind: spaces[kind[0]].layout.chunk_bytes(kind[1]) for kind in set(kinds)}
    if not session.served.fits(max(raw.values(), default=0)):
        raise InvalidRequest("a chunk is larger than the pool")
    frames = {kind: frame_bytes(size) for kind, size in raw.items()}
    owner = f"{session.name} {wanted.owner}"
    return _Leasing(wanted, owner, specs, list(map(frames.__getitem__, kinds)), asked.grant)


def _chunks(
    leases: Sequence[Lease | None],
    places: Sequence[int | None],
    reasons: Sequence[Reason | None],
    origins: Sequence[str],
    count: int,
) -> Chunks:
    """Return the answer for *count* chunks, of which the columns describe the first."""
    late = count - len(leases)
    offsets = [place or 0 for place in places]
    if None not in leases and not late:
        states = bytes([State.HERE]) * count
        return Chunks(states, offsets, [lease.size for lease in leases if lease], origins)
    states = bytes(State.MISSING if lease is None else State.HERE for lease in leases)
    sizes = [0 if lease is None else lease.size for lease in leases]
    words = [
        reason or Reason.REFUSED if lease is None else origin
        for lease, reason, origin in zip(leases, reasons, origins, strict=True)
    ]
    return Chunks(
        states + bytes([State.MISSING]) * late,
        offsets + [0] * late,
        sizes + [0] * late,
        words + [Reason.REFUSED] * late,
    )


def _so_far(hold: Hold, count: int) -> Chunks:
    """Return the known state of a hold under way; places of chunks follow at its end."""
    reasons = [*hold.reasons]
    reasons += [Reason.REFUSED] * (count - len(reasons))
    states = bytes(State.COMING if reason is None else State.MISSING for reason in reasons)
    return Chunks(states, [0] * count, [0] * count, [reason or "" for reason in reasons])


def _in_pool(
    session: Client, specs: Sequence[ChunkSpec], leases: Sequence[Lease | None], owner: str
) -> tuple[Sequence[Lease | None], Sequence[int | None]]:
    """Return *leases* and their places; copy chunks in a store's own memory to the pool."""
    places = session.served.places(leases)
    if places.count(None) == leases.count(None):
        return leases, places
    step_aside()
    found = list(leases)
    for i, place in enumerate(places):
        lease = leases[i]
        if place is None and lease is not None:
            now = Deadline(session.clock, 0.0)
            copies = session.served.chunks.allocate([specs[i]], owner, now)
            found[i] = copies[0] if copies else None
            if copies:
                copies[0].payload[:] = lease.payload
            lease.release()
    return found, session.served.places(found)


def _tiers(publishing: Publishing, count: int) -> bytes:
    """Return, by tier, a byte for each of *count* chunks."""
    rows = publishing.tiers
    parts = [bytes([len(rows)])]
    for name, row in rows.items():
        data = name.encode()[:255]
        parts += [bytes([len(data)]), data, bytes(map(bool, row)).ljust(count, b"\0")[:count]]
    return b"".join(parts)
