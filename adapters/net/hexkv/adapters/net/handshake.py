"""The handshake by which both ends of a connection prove that they know the secret.

Mutual challenge and response with HMAC-SHA256 (RFC 2104), after a greeting of the client and a
challenge of the server, each with a nonce::

    client  PROOF    of both messages under the secret
    server  VERDICT  and a proof of its own

Each proof covers all earlier messages, both nonces included, and the role of its sender, so it can
be neither replayed nor reflected, and no third party can change the messages. The client proves
first: a client without the secret gets no data to guess it off line. Without a secret both sides
use the empty one. Later messages are neither signed nor encrypted: use TLS for that.
"""

from __future__ import annotations

import hmac
from struct import Struct

from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline, StoreUnreachable

NONCE_BYTES = PROOF_BYTES = 32
ADMITTED = 0
WRONG_SECRET = 2

VERDICT = Struct(f"<B7x{PROOF_BYTES}s")
"""``ADMITTED`` or ``WRONG_SECRET``, and the server's proof."""


class Refused(StoreUnreachable):
    """The other end speaks another version, or does not know the same secret."""


def prove(
    stream: Stream, secret: bytes, hello: bytes, challenge: bytes, deadline: Deadline
) -> None:
    """Prove that this client knows *secret*, and check that the server does.

    Raises:
        Refused: one of them does not.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    stream.send([_proof(secret, b"client", hello, challenge)], deadline)
    verdict, proof = VERDICT.unpack(stream.take(VERDICT.size, deadline))
    if verdict != ADMITTED:
        raise Refused("the server wants another secret")
    if not hmac.compare_digest(proof, _proof(secret, b"server", hello, challenge)):
        raise Refused("the server does not know the secret")


def admit(
    stream: Stream, secret: bytes, hello: bytes, challenge: bytes, deadline: Deadline
) -> None:
    """Accept a client that proves that it knows *secret*.

    Raises:
        Refused: it does not; the verdict has been sent.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    proof = stream.take(PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"client", hello, challenge)):
        stream.send([VERDICT.pack(WRONG_SECRET, bytes(PROOF_BYTES))], deadline)
        raise Refused("a client does not know the secret")
    stream.send([VERDICT.pack(ADMITTED, _proof(secret, b"server", hello, challenge))], deadline)


def _proof(secret: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, role + hello + challenge, "sha256")
