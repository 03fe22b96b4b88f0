"""How a node leases chunks to a client: whole, or a group of layers after the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.asked import Request
from hexkv.adapters.net.rpc.wire import Head, Status
from hexkv.adapters.node.groups import Brought, pack_brought
from hexkv.adapters.node.server.asked import Client
from hexkv.adapters.node.server.granted import Grant
from hexkv.adapters.node.wire import Chunks, State, Verb, Wanted, pack_chunks, read_wanted
from hexkv.plugins.threads import step_aside
from hexkv.ports import (
    PAGE,
    RAW,
    ChunkSpec,
    Deadline,
    Hold,
    InvalidRequest,
    Lease,
    PoolExhausted,
    Reason,
    ServiceHold,
    frame_bytes,
    share_all,
)

log = logging.getLogger(__name__)


class Leasing(NamedTuple):
    """A request that leases."""

    asks: Wanted
    owner: str
    specs: Sequence[ChunkSpec]
    frames: Sequence[int]
    """Bytes of the frame of each chunk."""

    grant: Grant


def hold(session: Client, asked: Request) -> None:
    """Lease chunks of any tier, and send their places; by groups of layers if that is asked."""
    asks, owner, specs, frames, grant = wanted(session, asked)
    until = session.until(asked.head)
    room = session.granted.reserve(grant, frames)
    groups = _groups(asks, specs, grant)
    found = session.served.hold(specs[:room], owner, until, groups, grant.encoded, grant.rate)
    if groups and not found.done:
        with found:
            _by_layers(session, asked, found, specs, owner, until)
        return
    if not session.granted.held(grant, found):
        return
    if not found.done:
        session.send(asked.head, Status.BEGUN, pack_chunks(_so_far(found, len(specs))))
        found.wait(until)
    arrived, chunks = found.leases, None
    if len(arrived) == len(found.reasons):  # not given back in the wait, nor past its time
        _, chunks = _settle(session, asked, found, arrived, specs, owner)
    # Answered anyway: the client of one past its time may wait for it.
    session.send(asked.head, Status.DONE, pack_chunks(chunks or _none_of(specs)))


def _settle(
    session: Client,
    asked: Request,
    found: ServiceHold,
    arrived: Sequence[Lease | None],
    specs: Sequence[ChunkSpec],
    owner: str,
) -> tuple[Sequence[Lease | None], Chunks | None]:
    """Set the final leases of a hold. Return them and their places, or none if it was given back.

    Of encoded chunks the sizes are those of header and payload.
    """
    leases, places = _in_pool(session, arrived, owner)
    chunks = pack_leases(leases, places, found.reasons, found.origins, len(specs))
    if asked.grant.encoded:
        sizes, serdes = list(chunks.sizes), list[str | None]([None]) * len(specs)
        for i, lease in enumerate(leases):
            if lease is not None and lease.spec is not None and lease.spec.serde != RAW:
                sizes[i], serdes[i] = PAGE + len(lease.payload), lease.spec.serde
        chunks = chunks._replace(sizes=sizes, serdes=serdes)
    settled = session.granted.settle(asked.head.request, asked.grant, leases, fresh=False)
    return leases, chunks if settled or not any(leases) else None


def _none_of(specs: Sequence[ChunkSpec]) -> Chunks:
    return pack_leases([], [], [], [], len(specs))


def _groups(asks: Wanted, specs: Sequence[ChunkSpec], grant: Grant) -> Sequence[range]:
    """Return the groups of layers of a hold; empty if all layers come at once.

    Raises:
        InvalidRequest: they are not those of the chunks.
    """
    if grant.layers is None or len(set(asks.spaces)) != 1:
        return ()
    groups = grant.layers.groups
    if groups[-1].stop != specs[0].layout.layers:
        raise InvalidRequest("groups of layers that are not those of the chunks")
    return groups


def _by_layers(
    session: Client,
    asked: Request,
    found: ServiceHold,
    specs: Sequence[ChunkSpec],
    owner: str,
    until: Deadline,
) -> None:
    """Send the places of chunks once the first group of layers is here, and bring the others.

    The client has shares: its blocks stay where they are, whatever becomes of the hold.
    """
    grant = asked.grant
    session.send(asked.head, Status.BEGUN, pack_chunks(_so_far(found, len(specs))))
    count = found.bring(0, until)
    shares: list[Lease | None] = [*share_all([it for it in found.leases[:count] if it], owner)]
    shares += [None] * (len(found.reasons) - count)
    leases, chunks = _settle(session, asked, found, shares, specs, owner)
    if chunks is not None and not found.done:
        coming = chunks.states.replace(bytes([State.HERE]), bytes([State.COMING]))
        chunks = chunks._replace(states=coming)
    session.send(asked.head, Status.DONE, pack_chunks(chunks or _none_of(specs)))
    if chunks is None or found.done:
        return
    if not count:
        found.used(until)
        return
    about = asked.head._replace(verb=Verb.LAYERS, request=grant.layers.about)
    try:
        _bring_others(session, about, grant, found, leases, until)
    except Exception:
        log.exception("the layers of a hold of client %s failed", session.name)
        session.send(about, Status.FAILED)


def _bring_others(
    session: Client,
    about: Head,
    grant: Grant,
    found: ServiceHold,
    leases: Sequence[Lease | None],
    until: Deadline,
) -> None:
    """Bring the groups behind the first, and send how many are here, until all are given back."""
    own, replaced = found.leases, found.replaced
    last = len(grant.layers.groups) - 1 if grant.layers is not None else 0
    for group in range(1, last + 1):
        if grant.gone:
            return
        found.go_on(group - 1, until)
        count = found.bring(group, until)
        if found.replaced != replaced:
            count = min(count, _refill(leases, own, found.leases))
            own, replaced = found.leases, found.replaced
        over = group == last or not count
        if over:
            found.used(until)
        why = "" if count == len(own) else found.reasons[count] or Reason.REFUSED
        brought = pack_brought(Brought(group + 1, count, why))
        session.send(about, Status.DONE if over else Status.BEGUN, brought)
        if over:
            return


def _refill(
    leases: Sequence[Lease | None], old: Sequence[Lease | None], new: Sequence[Lease | None]
) -> int:
    """Copy chunks that were read again to the blocks that the client has of them.

    Return how many of the first are as the client knows them: a tier may have others by now.
    """
    for number, (mine, before, lease) in enumerate(zip(leases, old, new, strict=False)):
        if mine is not None and lease is not None and lease is not before:
            # A share: the client may give its block back in the middle of this.
            with suppress(InvalidRequest), mine.share(mine.owner) as block:
                if (block.spec, len(block.payload)) != (lease.spec, len(lease.payload)):
                    return number
                block.frame[: len(lease.frame)] = lease.frame
    return len(leases)


def wanted(session: Client, asked: Request) -> Leasing:
    """Return the parsed form of a request that leases.

    Raises:
        BadMessage: chunks are of a namespace that was not defined.
        InvalidRequest: one is larger than the pool.
    """
    asks = read_wanted(asked.body)
    if asked.grant is None:
        raise BadMessage("a request without a grant")
    try:
        spaces = {number: session.spaces[number] for number in set(asks.spaces)}
    except KeyError as error:
        raise BadMessage("a namespace that was not sent") from error
    specs = [
        ChunkSpec(key, space.identity, space.layout, tokens, space.serde, None if at < 0 else at)
        for key, space, tokens, at in zip(
            asks.keys,
            map(spaces.__getitem__, asks.spaces),
            asks.tokens,
            asks.positions,
            strict=True,
        )
    ]
    kinds = list(zip(asks.spaces, asks.tokens, strict=True))
    raw = {kind: spaces[kind[0]].layout.chunk_bytes(kind[1]) for kind in set(kinds)}
    if not session.served.fits(max(raw.values(), default=0)):
        raise InvalidRequest("a chunk is larger than the pool")
    frames = {kind: frame_bytes(size) for kind, size in raw.items()}
    owner = f"{session.name} {asks.owner}"
    return Leasing(asks, owner, specs, list(map(frames.__getitem__, kinds)), asked.grant)


def pack_leases(
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
    session: Client, leases: Sequence[Lease | None], owner: str
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
            found[i], now = None, Deadline(session.clock, 0.0)
            with lease, suppress(PoolExhausted):
                copy = session.served.stack.pool.lease(len(lease.payload), owner, now)
                copy.frame[:], copy.spec = lease.frame, lease.spec
                found[i] = copy
    return found, session.served.places(found)
