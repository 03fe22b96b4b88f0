"""A client of a node's socket in bytes alone: it uses no code of a node or of its client."""

from __future__ import annotations

import json
import mmap
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from hexkv.contracts.kit.whole import Whole
from hexkv.ports import DType, KVLayout

PATIENCE = 10.0
"""Seconds within which a node answers."""

MAGIC, VERSION, FRAME_VERSION = b"hexkvnd\n", 2, 2
KEY_BYTES, HEADER_BYTES = 48, 4096
ALL = 0xFFFF_FFFF
TOKENS = 16
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)
SIZE = LAYOUT.chunk_bytes(TOKENS)

_HELLO = struct.Struct("<8sHHI")
_WELCOME = struct.Struct("<8sHHQQQQII")
_HEAD = struct.Struct("<IHHQQd")


class NodeVerb(IntEnum):
    """The verbs that every node answers."""

    SPACE = 1
    RELEASE = 2
    PING = 3
    MATCH = 4
    HOLD = 5
    ALLOCATE = 6
    PUBLISH = 7
    FORGET = 8
    PIN = 9
    UNPIN = 10
    FLUSH = 11
    CLEAR = 12
    HEALTH = 13
    ANNOUNCE = 15
    WITHDRAW = 16
    EXPECT = 17


class NodeStatus(IntEnum):
    """The outcome of a request."""

    DONE = 0
    BEGUN = 1
    INVALID = 2
    BUSY = 3
    CLOSED = 4
    FAILED = 5


class Welcome(NamedTuple):
    """A node's part of the greeting."""

    magic: bytes
    version: int
    frame_version: int
    generation: int
    pool_bytes: int
    leased_bytes: int
    largest: int
    under_way: int
    body_bytes: int


class NodeAnswer(NamedTuple):
    """A message of the node."""

    verb: int
    status: NodeStatus
    request: int
    body: bytes


class NodeRow(NamedTuple):
    """One chunk of the answer to ``HOLD`` and ``ALLOCATE``."""

    here: bool
    offset: int
    size: int
    word: str


def key(name: str, namespace: bytes) -> bytes:
    """The key of a chunk called *name* in a namespace of 16 bytes."""
    return namespace + name.encode().ljust(KEY_BYTES - len(namespace), b".")


def text(value: str) -> bytes:
    """A short text: its length in a byte, and its UTF-8."""
    data = value.encode()
    return bytes([len(data)]) + data


def listed(keys: Sequence[bytes]) -> bytes:
    """The number of keys, and the keys."""
    return struct.pack("<I", len(keys)) + b"".join(keys)


def wanted(
    keys: Sequence[bytes], tokens: int = TOKENS, space: int = 0, owner: str = "check"
) -> bytes:
    """The body of ``HOLD`` and ``ALLOCATE``: owner, and columns of keys, spaces, tokens, places."""
    count = len(keys)
    columns = struct.pack(
        f"<{count}H{count}I{count}q", *[space] * count, *[tokens] * count, *[-1] * count
    )
    return text(owner) + listed(keys) + columns


def published(names: Sequence[tuple[int, int]]) -> bytes:
    """The body of ``PUBLISH`` for leases by request and place, behind no chunk."""
    requests, places = [name[0] for name in names], [name[1] for name in names]
    count = len(names)
    return b"\0" + struct.pack(f"<I{count}Q{count}I", count, *requests, *places)


def space_of(number: int, identity: str, layout: KVLayout = LAYOUT) -> bytes:
    """The body of ``SPACE``: number, identity, serde, layout as JSON."""
    named = identity.encode()
    described = json.dumps(layout.describe()).encode()
    return struct.pack("<HH", number, len(named)) + named + text("raw") + described


def words(body: bytes, count: int) -> list[str]:
    """The word of each row: a table of words, then a byte a row; 0 is none."""
    table, at = [""], 1
    for _ in range(body[0]):
        table.append(body[at + 1 : at + 1 + body[at]].decode())
        at += 1 + body[at]
    assert len(body) == at + count, f"{len(body) - at} rows of words for {count} chunks"
    return [table[place] for place in body[at:]]


def rows(body: bytes, count: int) -> list[NodeRow]:
    """The rows of an answer to ``HOLD`` or ``ALLOCATE``, of *count* chunks at most."""
    (found,) = struct.unpack_from("<I", body)
    assert found <= count, f"{found} chunks for {count}"
    states = body[4 : 4 + found]
    numbers = struct.unpack_from(f"<{2 * found}Q", body, 4 + found)
    names = words(body[4 + 17 * found :], found)
    return [
        NodeRow(state == 1, offset, size, name)
        for state, offset, size, name in zip(
            states, numbers[:found], numbers[found:], names, strict=True
        )
    ]


class RawNode:
    """A connection that was greeted, with the node's pool mapped."""

    def __init__(self, path: Path, version: int = VERSION, frames: int = FRAME_VERSION) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(path))
        self.sock.sendall(_HELLO.pack(MAGIC, version, frames, 0))
        data, descriptors, _, _ = socket.recv_fds(self.sock, _WELCOME.size, 1)
        data += self.receive(_WELCOME.size - len(data))
        self.welcome = Welcome(*_WELCOME.unpack(data))
        self.descriptors = list(descriptors)
        self._last = 0

    @cached_property
    def pool(self) -> mmap.mmap:
        """The node's memory."""
        assert self.descriptors, "the node passed no descriptor of its pool"
        return mmap.mmap(self.descriptors[0], self.welcome.pool_bytes)

    def begin(
        self, verb: int, body: bytes = b"", seconds: float = PATIENCE, *, answered: bool = True
    ) -> int:
        """Send a request; return its number, or 0 for a message without an answer."""
        request = 0
        if answered:
            self._last += 1
            request = self._last
        self.sock.sendall(self.message(verb, request, body, seconds))
        return request

    def message(self, verb: int, request: int, body: bytes, seconds: float = PATIENCE) -> bytes:
        """The bytes of a message of this life of the node."""
        return _HEAD.pack(len(body), verb, 0, request, self.welcome.generation, seconds) + body

    def number(self) -> int:
        """The next number of a request, for :meth:`message`."""
        self._last += 1
        return self._last

    def answer(self) -> NodeAnswer:
        """The next answer, also one that is not the last to its request."""
        length, verb, status, request, generation, _ = _HEAD.unpack(self.receive(_HEAD.size))
        assert generation == self.welcome.generation, "an answer of another life of the node"
        assert length <= 64 << 20, f"an answer of {length} bytes"
        return NodeAnswer(verb, NodeStatus(status), request, self.receive(length))

    def ask(self, verb: int, body: bytes = b"", seconds: float = PATIENCE) -> NodeAnswer:
        """The last answer to a request; other requests must not be under way."""
        request = self.begin(verb, body, seconds)
        while (answer := self.answer()).status is NodeStatus.BEGUN:
            assert answer.request == request
        assert (answer.verb, answer.request) == (verb, request), "an answer to another request"
        return answer

    def done(self, verb: int, body: bytes = b"", seconds: float = PATIENCE) -> bytes:
        """The body of an answer without an error."""
        answer = self.ask(verb, body, seconds)
        assert answer.status is NodeStatus.DONE, (
            f"{NodeVerb(verb).name}: {answer.status.name} {answer.body!r}"
        )
        return answer.body

    def count(self, verb: int, body: bytes = b"") -> int:
        """The number that a verb answers with."""
        (found,) = struct.unpack("<Q", self.done(verb, body))
        return int(found)

    def match(self, keys: Sequence[bytes]) -> list[str]:
        """The tier of each chunk; empty for none."""
        return words(self.done(NodeVerb.MATCH, listed(keys)), len(keys))

    def lease(
        self, verb: NodeVerb, keys: Sequence[bytes], tokens: int = TOKENS, seconds: float = PATIENCE
    ) -> tuple[int, list[NodeRow]]:
        """The request's number and its rows."""
        body = self.done(verb, wanted(keys, tokens), seconds)
        return self._last, rows(body, len(keys))

    def payload(self, row: NodeRow, size: int = SIZE) -> memoryview:
        """The KV of a leased chunk, in the pool."""
        end = row.offset + HEADER_BYTES + size
        assert end <= row.offset + row.size <= self.welcome.pool_bytes, f"{row} is no block"
        return memoryview(self.pool)[row.offset + HEADER_BYTES : end]

    def release(self, *names: tuple[int, int]) -> None:
        """Give back leases, by request and place."""
        body = b"".join(struct.pack("<QI", *name) for name in names)
        self.begin(NodeVerb.RELEASE, body, answered=False)

    def put(self, chunks: dict[bytes, bytes]) -> None:
        """Store chunks of :data:`SIZE` bytes, and give their memory back."""
        for name, data in chunks.items():
            request, found = self.lease(NodeVerb.ALLOCATE, [name])
            assert [row.here for row in found] == [True], "no memory for one chunk"
            self.payload(found[0])[:] = data
            self.done(NodeVerb.PUBLISH, published([(request, 0)]))
            self.release((request, ALL))

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The KV of each chunk, or None."""
        request, found = self.lease(NodeVerb.HOLD, keys)
        held = [bytes(self.payload(row)) if row.here else None for row in found]
        self.release((request, ALL))
        return held

    def receive(self, size: int) -> bytes:
        """The next *size* bytes."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self.sock.recv(size - len(data))
            except TimeoutError as error:
                raise AssertionError(f"no answer within {PATIENCE:g} seconds") from error
            except OSError as error:
                raise AssertionError(f"the connection broke: {error}") from error
            assert part, "the node closed the connection in place of an answer"
            data += part
        return bytes(data)

    def ends(self) -> bool:
        """True if the node sends nothing and closes its end, or stops sending."""
        try:
            return self.sock.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def refuses(self) -> bool:
        """True if the node answers INVALID, or ends the connection."""
        try:
            said = self.sock.recv(_HEAD.size, socket.MSG_WAITALL)
        except TimeoutError:
            return False
        except OSError:
            return True
        return not said or (len(said) == _HEAD.size and _HEAD.unpack(said)[2] == NodeStatus.INVALID)

    def close(self) -> None:
        """End the connection. Leases end with it."""
        self.sock.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class NodeCase(Whole):
    """The fixture that an author gives, and those derived from it."""

    @pytest.fixture
    def node(self) -> Path:
        """The path of the socket of a node that serves, with room for 16 small chunks or more."""
        raise NotImplementedError(f"give {type(self).__name__} a `node` fixture")

    @pytest.fixture
    def namespace(self) -> bytes:
        """A random namespace: others may use the node."""
        return secrets.token_bytes(16)

    @pytest.fixture
    def connect(self, node: Path, namespace: bytes) -> Iterator[Callable[[], RawNode]]:
        """A function that connects a client, with space 0 defined; what it stored is deleted."""
        with ExitStack() as opened:

            def connect() -> RawNode:
                wire = opened.enter_context(RawNode(node))
                identity = json.dumps({"model": namespace.hex()})
                wire.begin(NodeVerb.SPACE, space_of(0, identity), answered=False)
                return wire

            yield connect
        with RawNode(node) as last:
            last.ask(
                NodeVerb.CLEAR, json.dumps({"prefixes": [namespace.hex()], "tiers": None}).encode()
            )

    @pytest.fixture
    def wire(self, connect: Callable[[], RawNode]) -> RawNode:
        """One client."""
        return connect()
