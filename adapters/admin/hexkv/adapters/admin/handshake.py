"""The handshake by which both ends prove that they know the secret, before any other message.

Mutual challenge and response with HMAC-SHA256 (RFC 2104): each proof covers both greetings, their
nonces included, and the role of its sender, so it can be neither replayed nor reflected. The client
proves first: a client without the secret gets no data to guess it by. Without a secret, over a Unix
socket, both use the empty one: there the kernel identifies the client.
"""

from __future__ import annotations

import hmac
import secrets
from struct import Struct

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline, StoreUnreachable

MAGIC = b"hexkvad\n"
VERSION = 1
GREETING = Struct("<8sH32s")
"""The greeting of either end: magic, version, and a nonce."""

VERDICT = Struct("<B32s")
"""The server's answer: 1 if the client is accepted, and then a proof."""

_NONCE = 32
_PROOF = 32
_IN = 1


class Refused(StoreUnreachable):
    """The other end speaks another version, or does not know the same secret."""


def greet(stream: Stream, secret: bytes, deadline: Deadline) -> None:
    """Greet a server, as its client.

    Raises:
        Refused: wrong version or secret, on either side.
        BadMessage: no administration is served there.
        OutOfTime, ConnectionBroken
    """
    mine = GREETING.pack(MAGIC, VERSION, secrets.token_bytes(_NONCE))
    stream.send([mine], deadline)
    theirs = stream.take(GREETING.size, deadline)
    _check(theirs, "no administration is served there")
    stream.send([_proof(secret, b"client", mine, theirs)], deadline)
    verdict, proof = VERDICT.unpack(stream.take(VERDICT.size, deadline))
    if verdict != _IN:
        raise Refused("the server wants another secret")
    if not hmac.compare_digest(proof, _proof(secret, b"server", mine, theirs)):
        raise Refused("the server does not know the secret")


def answer(stream: Stream, secret: bytes, deadline: Deadline) -> None:
    """Answer a client, which may send a verb afterwards.

    Raises:
        Refused: wrong version or secret; the client has been informed.
        BadMessage: this is no client of administration.
        OutOfTime, ConnectionBroken
    """
    theirs = stream.take(GREETING.size, deadline)
    mine = GREETING.pack(MAGIC, VERSION, secrets.token_bytes(_NONCE))
    if theirs.startswith(MAGIC):
        stream.send([mine], deadline)
    _check(theirs, "no greeting of administration")
    proof = stream.take(_PROOF, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"client", theirs, mine)):
        stream.send([VERDICT.pack(0, bytes(_PROOF))], deadline)
        raise Refused("it does not know the secret")
    stream.send([VERDICT.pack(_IN, _proof(secret, b"server", theirs, mine))], deadline)


def _check(greeting: bytes, otherwise: str) -> None:
    magic, version, _ = GREETING.unpack(greeting)
    if magic != MAGIC:
        raise BadMessage(otherwise)
    if version != VERSION:
        raise Refused(f"it speaks version {version} of the protocol, not {VERSION}")


def _proof(secret: bytes, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.digest(secret, role + client + server, "sha256")
