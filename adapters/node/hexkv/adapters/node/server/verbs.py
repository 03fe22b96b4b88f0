"""The table of what a node does for each verb; another module may add to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from struct import pack, unpack

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.asked import Request
from hexkv.adapters.net.rpc.wire import Head, Status
from hexkv.adapters.node.client.telling import read_named
from hexkv.adapters.node.groups import read_layers
from hexkv.adapters.node.listing import MOST, pack_listing
from hexkv.adapters.node.server.announced import announce, expect, push_to, seek, withdraw
from hexkv.adapters.node.server.asked import Client
from hexkv.adapters.node.server.holding import hold, pack_leases, wanted
from hexkv.adapters.node.wire import (
    Reader,
    Verb,
    pack_chunks,
    pack_words,
    read_encoded,
    read_release,
    read_space,
)
from hexkv.ports import (
    KEY_BYTES,
    MAGIC,
    NAMESPACE_BYTES,
    RAW,
    SHARED_OWNER,
    ChunkKey,
    InvalidRequest,
    Publishing,
    release_all,
    share_all,
)

_UNSEALED = bytes(len(MAGIC))
_MOST_PINS = 1 << 16
_LONGEST_PIN = 366 * 86_400.0
_MOST_PREFIXES = 1 << 16
_LONGEST_SHARED = 3_600.0


def _ping(session: Client, asked: Request) -> None:
    session.send(asked.head, Status.DONE)


def _match(session: Client, asked: Request) -> None:
    reader = Reader(asked.body)
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    found = session.served.chunks.match(keys, session.until(asked.head))
    session.send(asked.head, Status.DONE, pack_words(found))


def _allocate(session: Client, asked: Request) -> None:
    asks, owner, specs, frames, grant = wanted(session, asked)
    # A chunk that could not be published need not be copied.
    room = 0 if session.served.frozen else session.granted.reserve(grant, frames)
    for number, key in zip(asks.spaces, asks.keys, strict=True):
        pair = number, key[:NAMESPACE_BYTES]
        if pair not in session.met and len(session.met) < _MOST_PREFIXES:
            session.met.add(pair)
            session.served.meet(session.spaces[number].identity, pair[1])
    leases = session.served.chunks.allocate(specs[:room], owner, session.until(asked.head))
    places = session.served.places(leases)
    chunks = pack_leases(leases, places, [None] * len(leases), [""] * len(leases), len(leases))
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
    if asked.body:
        rate = _rate(Reader(asked.body))
        session.served.stack.runtime.computing.client(session.name, rate)
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


def _layers(session: Client, asked: Head, body: bytes) -> None:
    del asked
    layers = read_layers(body)
    session.granted.ahead(layers.hold).layers = layers


def _encoded(session: Client, asked: Head, body: bytes) -> None:
    del asked
    request, serdes = read_encoded(body)
    session.granted.ahead(request).encoded = frozenset(serdes) - {RAW}


def _computes(session: Client, asked: Head, body: bytes) -> None:
    del asked
    reader = Reader(body)
    grant = session.granted.ahead(reader.number("Q"))
    grant.rate = _rate(reader)


def _used(session: Client, asked: Head, body: bytes) -> None:
    del asked
    reader = Reader(body)
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    session.served.stack.touch(keys)


def _lasts(session: Client, asked: Head, body: bytes) -> None:
    reader = Reader(body)
    session.granted.last(reader.number("Q"), asked.seconds)
    reader.end()


TOLD: dict[int, Callable[[Client, Head, bytes], None]] = {
    Verb.SPACE: _space,
    Verb.RELEASE: _release,
    Verb.LASTS: _lasts,
    Verb.LAYERS: _layers,
    Verb.ENCODED: _encoded,
    Verb.COMPUTES: _computes,
    Verb.USED: _used,
}
"""Messages that are not answered. Handled in order, by the thread that reads."""

VERBS: dict[int, Callable[[Client, Request], None]] = {
    Verb.PING: _ping,
    Verb.MATCH: _match,
    Verb.HOLD: hold,
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


def _rate(reader: Reader) -> float:
    """Return the rest of a body: the tokens per second that the client's host computes."""
    (rate,) = unpack("<d", reader.data(8))
    reader.end()
    if not 0 < rate < inf:
        raise BadMessage("no rate of computing")
    return float(rate)


def _tiers(publishing: Publishing, count: int) -> bytes:
    """Return, by tier, a byte for each of *count* chunks."""
    rows = publishing.tiers
    parts = [bytes([len(rows)])]
    for name, row in rows.items():
        data = name.encode()[:255]
        parts += [bytes([len(data)]), data, bytes(map(bool, row)).ljust(count, b"\0")[:count]]
    return b"".join(parts)
