"""How both ends of a ``hexkv://`` connection show that they know the secret.

Mutual challenge and response with HMAC-SHA256 (RFC 2104): each proof covers everything that
was said before, both nonces included, and who proves it, so it can be neither replayed nor
reflected, and nobody on the way can change the version, the flags or the limits. The client
proves first: whoever does not know the secret gets nothing to guess it by off line. Without
a secret both sides use the empty one. What follows the handshake is neither signed nor
encrypted: that is what TLS is for.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import NamedTuple

from hexkv.adapters.lmserver.wire import (
    CHALLENGE,
    CHECKED,
    HELLO,
    MAGIC,
    MAX_ENTRIES,
    NONCE_BYTES,
    PROOF_BYTES,
    VERSION,
    WELCOME,
    Welcome,
)
from hexkv.adapters.net.connection import Connection
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline, StoreUnreachable

Nonce = Callable[[int], bytes]
"""Gives so many random bytes: ``secrets.token_bytes``, but for tests."""


class Agreed(NamedTuple):
    """What a handshake settled."""

    checked: bool
    """Whether a digest follows each value."""

    max_entries: int
    max_value: int


class Refused(StoreUnreachable):
    """The other end speaks another version, or does not know the same secret."""


def greet(
    stream: Stream, secret: bytes, deadline: Deadline, nonce: Nonce, *, checked: bool
) -> Agreed:
    """The client's side.

    Raises:
        Refused: wrong version or secret, on whichever side.
        BadMessage: this is no hexkv server.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    hello = HELLO.pack(MAGIC, VERSION, CHECKED if checked else 0, nonce(NONCE_BYTES))
    stream.send([hello], deadline)
    challenge = stream.take(CHALLENGE.size, deadline)
    magic, version, verdict, max_entries, max_value, _ = CHALLENGE.unpack(challenge)
    if magic != MAGIC:
        raise BadMessage("no hexkv server answers there")
    if version != VERSION or verdict != Welcome.WELCOME:
        raise Refused(f"the server speaks version {version} of the protocol, not {VERSION}")
    if not 0 < max_entries <= MAX_ENTRIES:
        raise BadMessage("the server takes no entries")
    stream.send([_proof(secret, b"client", hello, challenge)], deadline)
    verdict, proof = WELCOME.unpack(stream.take(WELCOME.size, deadline))
    if verdict != Welcome.WELCOME:
        raise Refused("the server wants another secret")
    if not hmac.compare_digest(proof, _proof(secret, b"server", hello, challenge)):
        raise Refused("the server does not know the secret")
    return Agreed(checked, max_entries, max_value)


def answer(connection: Connection, secret: bytes, nonce: Nonce) -> Agreed:
    """The server's side; the client is known afterwards.

    Raises:
        Refused: wrong version or secret; the client has been told.
        BadMessage: this is no hexkv client.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    stream, deadline = connection.stream, connection.opening
    max_value = connection.limits.max_value
    hello = connection.begin(HELLO.size)
    magic, version, flags, _ = HELLO.unpack(hello)
    if magic != MAGIC:
        raise BadMessage("no greeting of the hexkv protocol")
    right = version == VERSION and not flags & ~CHECKED
    verdict = Welcome.WELCOME if right else Welcome.WRONG_VERSION
    challenge = CHALLENGE.pack(MAGIC, VERSION, verdict, MAX_ENTRIES, max_value, nonce(NONCE_BYTES))
    stream.send([challenge], deadline)
    if not right:
        raise Refused(f"a client speaks version {version} with flags {flags:#x}")
    proof = stream.take(PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"client", hello, challenge)):
        stream.send([WELCOME.pack(Welcome.WRONG_SECRET, bytes(PROOF_BYTES))], deadline)
        raise Refused("a client does not know the secret")
    mine = _proof(secret, b"server", hello, challenge)
    stream.send([WELCOME.pack(Welcome.WELCOME, mine)], deadline)
    connection.known = True
    return Agreed(bool(flags & CHECKED), MAX_ENTRIES, max_value)


def _proof(secret: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, role + hello + challenge, "sha256")
