"""The handshake before the first request of a connection: versions, limits, and a secret.

A greeting of the client and a challenge of the server, each with a nonce, and then mutual challenge
and response with HMAC-SHA256 (RFC 2104)::

    client  HELLO      magic:8s  version:u16  fields of the protocol
    server  CHALLENGE  magic:8s  version:u16  fields of the protocol
    client  PROOF      of both messages under the secret
    server  VERDICT    and a proof of its own

Each proof covers all earlier messages, both nonces included, and the role of its sender, so it can
be neither replayed nor reflected, and no third party can change the messages. The client proves
first: a client without the secret gets no data to guess it off line. Without a secret both sides
use the empty one. Later messages are neither signed nor encrypted: use TLS for that. A protocol
without nonces ends with the challenge: there the kernel identifies the client.
"""

from __future__ import annotations

import hmac
import re
from secrets import token_bytes
from struct import Struct
from typing import Any

from hexkv.adapters.net.errors import BadMessage, Refused
from hexkv.adapters.net.security import SecretSource, accepted, current
from hexkv.adapters.net.server.connection import Connection
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline

NONCE_BYTES = PROOF_BYTES = 32
_ADMITTED, _WRONG_SECRET = 0, 2

_VERDICT = Struct(f"<B7x{PROOF_BYTES}s")
_START = "<8sH"


class Handshake:
    """The handshake of one protocol.

    Fields are codes of the module ``struct``, little-endian. ``N`` is a nonce. ``V`` is one byte of
    the challenge, 1 if the version is wrong, for clients that speak several.

    Args:
        name: of the server, for errors.
        magic: eight bytes.
        version: of the protocol.
        hello: fields of the client's message.
        challenge: fields of the server's.
    """

    def __init__(self, name: str, magic: bytes, version: int, hello: str, challenge: str) -> None:
        self._name = name
        self.magic = magic
        self.version = version
        self._hello, self._challenge = _Message(hello), _Message(challenge)
        self._proves = "N" in hello
        self.hello_bytes = self._hello.size
        self.challenge_bytes = self._challenge.size

    def hello(self, *fields: object) -> bytes:
        """Return the client's greeting."""
        return self._hello.pack(self.magic, self.version, fields)

    def challenge(self, *fields: object, wrong: bool = False) -> bytes:
        """Return the server's message; *wrong*: it refuses the client's version."""
        return self._challenge.pack(self.magic, self.version, fields, wrong=wrong)

    def greet(
        self,
        stream: Stream,
        deadline: Deadline,
        secret: SecretSource,
        *fields: object,
        passed: list[int] | None = None,
    ) -> tuple[Any, ...]:
        """Greet a server, as its client. Return the fields of its challenge.

        Descriptors that come with it are added to *passed*; the caller closes them.

        Raises:
            Refused: wrong version or secret, on either side.
            BadMessage: no such server is there.
            OutOfTime, ConnectionBroken: as everything that waits for a stream.
        """
        hello = self.hello(*fields)
        stream.send([hello], deadline)
        if passed is None:
            challenge = stream.take(self.challenge_bytes, deadline)
        else:
            challenge, found = stream.take_descriptors(self.challenge_bytes, deadline)
            passed += found
        said = self._read_challenge(challenge)
        if self._proves:
            known = current(secret)
            stream.send([_proof(known, b"client", hello, challenge)], deadline)
            verdict, proof = _VERDICT.unpack(stream.take(_VERDICT.size, deadline))
            if verdict != _ADMITTED:
                raise Refused("the server wants another secret")
            if not hmac.compare_digest(proof, _proof(known, b"server", hello, challenge)):
                raise Refused("the server does not know the secret")
        return said

    def answer(
        self, connection: Connection, secret: SecretSource, *fields: object
    ) -> tuple[Any, ...]:
        """Answer a client, which is known afterwards. Return the fields of its greeting.

        Raises:
            Refused: wrong version or secret; the client has been informed.
            BadMessage: the other end is no such client.
            OutOfTime, ConnectionBroken: as everything that waits for a stream.
        """
        stream, deadline = connection.stream, connection.opening
        hello = connection.begin(self.hello_bytes)
        magic, version, found, _ = self._hello.unpack(hello)
        if magic != self.magic:
            raise BadMessage(f"no greeting of the {self._name} protocol")
        wrong = version != self.version
        challenge = self.challenge(*fields, wrong=wrong)
        stream.send([challenge], deadline)
        if wrong:
            raise Refused(f"a client speaks version {version}")
        if self._proves:
            proof = stream.take(PROOF_BYTES, deadline)
            known = [
                one
                for one in accepted(secret)
                if hmac.compare_digest(proof, _proof(one, b"client", hello, challenge))
            ]
            if not known:
                stream.send([_VERDICT.pack(_WRONG_SECRET, bytes(PROOF_BYTES))], deadline)
                raise Refused("a client does not know the secret")
            mine = _proof(known[0], b"server", hello, challenge)
            stream.send([_VERDICT.pack(_ADMITTED, mine)], deadline)
        connection.known = True
        return found

    def _read_challenge(self, data: bytes) -> tuple[Any, ...]:
        magic, version, found, wrong = self._challenge.unpack(data)
        if magic != self.magic:
            raise BadMessage(f"no {self._name} answers there")
        if version != self.version or wrong:
            raise Refused(f"the {self._name} speaks version {version}, not {self.version}")
        return found


class _Message:
    """One message before the proofs."""

    def __init__(self, fields: str) -> None:
        codes = fields.replace("N", f"{NONCE_BYTES}s").replace("V", "B")
        self._struct = Struct(_START + codes)
        self._fields = re.findall(r"\d*s|[^\dx]", fields)
        self.size = self._struct.size

    def pack(
        self, magic: bytes, version: int, fields: tuple[object, ...], *, wrong: bool = False
    ) -> bytes:
        own, rest = {"N": token_bytes(NONCE_BYTES), "V": wrong}, iter(fields)
        values = [own[field] if field in own else next(rest) for field in self._fields]
        return self._struct.pack(magic, version, *values)

    def unpack(self, data: bytes) -> tuple[bytes, int, tuple[Any, ...], bool]:
        """Return magic, version, the protocol's own fields, and True if the version is wrong."""
        magic, version, *values = self._struct.unpack(data)
        named = list(zip(self._fields, values, strict=True))
        own = tuple(value for field, value in named if field not in "NV")
        return magic, version, own, any(value for field, value in named if field == "V")


def _proof(secret: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, role + hello + challenge, "sha256")
