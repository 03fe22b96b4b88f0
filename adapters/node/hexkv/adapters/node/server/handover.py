"""The protocol by which a node hands over to the process that takes its place.

Over the node's own socket, between processes of one user::

    successor    GREETING of ``HANDOVER``: versions of this protocol, of frames, of the clients'
    node         HELLO: its own, and bytes of its pool; with the pool's descriptor
    successor    TAKE, or END where versions or sizes do not fit: then the node ends as by SIGTERM
    node         STATE; then descriptors: the lock, the socket that listens, those of clients
    successor    STORES, if there are any: then descriptors of memory beside the pool
    successor    HAVE: it could go on
    node         GONE: from now on it touches nothing of it

A successor that does not know of stores does not request them, and a node that does not know of
them lists none: such memory is left behind.

Up to the last message the node can take everything back, and does if the connection ends or the
successor does not answer in time. Blocks stay where they are. Clients' connections go on as they
are, with their leases and with the bytes that they have sent and that are still unread.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from struct import Struct
from typing import NamedTuple

from hexkv.adapters.net import unix
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.node.wire import VERSION
from hexkv.peers.serving.inheritance import Pin, Place
from hexkv.ports import (
    FRAME_VERSION,
    KEY_BYTES,
    PAGE,
    ChunkKey,
    ChunkSpec,
    FrameFile,
    KVLayout,
    PlacedFrame,
)

HANDOVER = b"hexkvup\n"
HANDOVER_VERSION = 1

GREETING = Struct("<8sHHI")
"""The successor's message, and a client's: magic, protocol, frame version, and another version."""

HELLO = Struct("<8sHHIQ")
"""The node's message: magic, versions of the hand-over, of frames and of the clients' protocol, and
bytes of the pool."""

STATE = Struct("<QI")
"""Bytes of the state that follows, and the number of descriptors after it."""

TAKE, END, STORES, HAVE, GONE = b"T", b"E", b"S", b"H", b"G"

MAX_STATE = 1 << 32
"""Bytes, enough for twenty million chunks."""

_TOGETHER = 64
"""Descriptors in one message; the system allows 253."""


class Versions(NamedTuple):
    """The versions that must match. The clients' protocol may differ: then clients reconnect."""

    handover: int = HANDOVER_VERSION
    frames: int = FRAME_VERSION
    clients: int = VERSION


class PausedConnection(NamedTuple):
    """A client's connection, in a node that has stopped reading from it."""

    name: str
    spaces: Mapping[int, tuple[str, KVLayout, str]]
    pinned: Sequence[str]
    ahead: bytes
    """Bytes that were received and not parsed."""

    leases: Sequence[tuple[int, int, bool, Place]]
    """Request, place in it, True if it was never published, and the place of its block."""

    limits: Mapping[int, float]
    """By request, the seconds that its leases still last, where that is limited."""


class State(NamedTuple):
    """The whole state of a node."""

    generation: int
    clients: int
    """Version of the clients' protocol."""

    numbers: int
    """The number of the next client."""

    chunks: Sequence[tuple[str, Place]]
    """By tier, the least valuable first."""

    pins: Sequence[Pin]
    connections: Sequence[PausedConnection]
    """In the order of their descriptors."""

    busy: Sequence[Place]
    """Blocks that may still be written to: by the node until it has ended, and by clients that were
    dismissed, whose descriptors come last."""

    stores: Sequence[tuple[str, FrameFile]] | None = None
    """By tier, the frames in memory that its store has beside the pool; their descriptors follow on
    request. ``None``: the node does not know of such memory."""


def greeting() -> bytes:
    """Return the first message of a successor."""
    return GREETING.pack(HANDOVER, HANDOVER_VERSION, FRAME_VERSION, VERSION)


class _Table:
    """Specs, with their common parts written down once."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self._known: dict[tuple[str, int, str], int] = {}
        self._layouts: list[KVLayout] = []  # alive, so that no two have one identity

    def add(self, identity: str, layout: KVLayout, serde: str) -> int:
        name = identity, id(layout), serde
        number = self._known.get(name)
        if number is None:
            number = self._known[name] = len(self.rows)
            self._layouts.append(layout)
            self.rows.append([identity, layout.describe(), serde])
        return number

    def place(self, place: Place) -> list[object]:
        spec = place.spec
        row: list[object] = [*place[:3]]
        if spec is not None:
            space = self.add(spec.identity, spec.layout, spec.serde)
            row += [spec.key.hex(), space, spec.tokens, spec.position]
        return row


def pack(state: State) -> bytes:
    """Return a state as bytes."""
    table = _Table()
    said = {
        "generation": state.generation,
        "clients": state.clients,
        "numbers": state.numbers,
        "chunks": [[tier, *table.place(place)] for tier, place in state.chunks],
        "pins": [[pin.owner, [key.hex() for key in pin.keys], pin.seconds] for pin in state.pins],
        "connections": [
            {
                "name": one.name,
                "spaces": [[number, table.add(*space)] for number, space in one.spaces.items()],
                "pinned": list(one.pinned),
                "ahead": one.ahead.hex(),
                "leases": [
                    [request, at, fresh, *table.place(place)]
                    for request, at, fresh, place in one.leases
                ],
                "limits": list(one.limits.items()),
            }
            for one in state.connections
        ],
        "busy": [table.place(place) for place in state.busy],
        "spaces": table.rows,
        "stores": [
            [tier, file.end, [[key.hex(), offset, size] for key, offset, size in file.frames]]
            for tier, file in state.stores or ()
        ],
    }
    return json.dumps(said, separators=(",", ":")).encode()


def unpack(data: bytes) -> State:
    """Read the bytes of :func:`pack`.

    Raises:
        BadMessage: it is no state.
    """
    try:
        said = json.loads(data)
        spaces = [
            (str(i), KVLayout.parse(layout), str(serde)) for i, layout, serde in said["spaces"]
        ]

        def placed(offset: int, size: int, payload: int, *rest: object) -> Place:
            return Place(int(offset), int(size), int(payload), chunk(*rest) if rest else None)

        def chunk(key: object, space: object, tokens: object, position: object) -> ChunkSpec:
            return ChunkSpec(
                _key(key),
                *spaces[_int(space)][:2],
                _int(tokens),
                spaces[_int(space)][2],
                None if position is None else _int(position),
            )

        return State(
            _int(said["generation"]),
            _int(said["clients"]),
            _int(said["numbers"]),
            [(str(tier), placed(*row)) for tier, *row in said["chunks"]],
            [Pin(str(o), [_key(key) for key in keys], float(s)) for o, keys, s in said["pins"]],
            [
                PausedConnection(
                    str(one["name"]),
                    {_int(number): spaces[_int(space)] for number, space in one["spaces"]},
                    [str(owner) for owner in one["pinned"]],
                    bytes.fromhex(one["ahead"]),
                    [
                        (_int(request), _int(at), bool(fresh), placed(*row))
                        for request, at, fresh, *row in one["leases"]
                    ],
                    # An older node sets no limits.
                    {_int(request): float(left) for request, left in one.get("limits", ())},
                )
                for one in said["connections"]
            ],
            [placed(*row) for row in said["busy"]],
            [_store(*row) for row in said["stores"]] if "stores" in said else None,
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadMessage(f"no state of a node: {error}") from error


def _int(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _key(value: object) -> ChunkKey:
    key = bytes.fromhex(str(value))
    if len(key) != KEY_BYTES:
        raise ValueError("no key")
    return ChunkKey(key)


def _store(tier: object, end: object, frames: Sequence[Sequence[object]]) -> tuple[str, FrameFile]:
    file = FrameFile(
        -1,
        _int(end),
        [PlacedFrame(_key(key), _int(offset), _int(size)) for key, offset, size in frames],
    )
    at = 0
    for _, offset, size in sorted(file.frames, key=lambda frame: frame.offset):
        if offset < at or offset % PAGE:
            raise ValueError("frames overlap")
        at = offset + size
    if at > file.end:
        raise ValueError("a frame ends behind the end")
    return str(tier), file


def receive(sock: socket.socket, size: int) -> bytes:
    """Return the next *size* bytes.

    Raises:
        OSError: they do not come in time, or the connection ends.
    """
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionResetError("the other process has closed the connection")
        data += part
    return bytes(data)


def send_descriptors(sock: socket.socket, descriptors: Sequence[int]) -> None:
    """Pass descriptors, some with each byte."""
    for start in range(0, len(descriptors), _TOGETHER):
        socket.send_fds(sock, [b"."], descriptors[start : start + _TOGETHER])


def receive_descriptors(sock: socket.socket, count: int) -> list[int]:
    """Receive *count* descriptors, which the caller closes.

    Raises:
        OSError: they do not come; then none is open.
    """
    found: list[int] = []
    with ExitStack() as opened:
        while len(found) < count:
            _, some = unix.receive_descriptors(sock, 1, _TOGETHER)
            for descriptor in some:
                opened.callback(os.close, descriptor)
            if not some:
                raise ConnectionResetError("descriptors are missing")
            found += some
        opened.pop_all()
    return found
