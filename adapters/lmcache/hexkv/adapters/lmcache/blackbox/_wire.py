"""A client of the ``lm://`` wire, independent of other code.

A request is nine native 32-bit integers and a key of 150 bytes, padded with blanks; an answer
is nine integers::

    request  command length format dtype location shape shape shape shape key
    answer   code    length format dtype shape shape shape shape location

PUT is followed by ``length`` bytes and has no answer; those of GET and LIST are followed by
``length`` bytes.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, Self

import pytest

from hexkv.contracts.kit.whole import Whole

PATIENCE = 30.0
"""Seconds after which a server that does not answer counts as hanging."""

KEY_LENGTH = 150
REQUEST = Struct(f"=9i{KEY_LENGTH}s")
ANSWER = Struct("=9i")
FOUND, FAILED = 200, 400

NO_VALUE = b"hexkv-check@1@0@0@uint8"
"""The name in requests without a value: a server may parse every name."""

_LONGEST = 256 << 20
"""The most bytes of an answer: more than all values that the kit stores on a server."""


class Command(IntEnum):
    """The command of a request."""

    PUT = 1
    GET = 2
    EXIST = 3
    LIST = 4
    HEALTH = 5


class Address(NamedTuple):
    """The address of a server."""

    host: str
    port: int


class Tensor(NamedTuple):
    """The wire's description of a value, besides its length."""

    format: int = 4
    dtype: int = 6
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)


class Answer(NamedTuple):
    """An answer's head."""

    code: int
    length: int
    tensor: Tensor


def request(command: int, key: bytes = b"", length: int = 0, tensor: Tensor | None = None) -> bytes:
    """The bytes of a request."""
    told = tensor or Tensor(shape=(length, 0, 0, 0))
    numbers = command, length, told.format, told.dtype, 0, *told.shape
    return REQUEST.pack(*numbers, key.ljust(KEY_LENGTH))


class Wire:
    """One connection. Answers that do not arrive in time fail the test.

    Raises:
        AssertionError: it cannot connect.
    """

    def __init__(self, server: Address) -> None:
        try:
            self.sock = socket.create_connection(server, PATIENCE)
        except OSError as error:
            raise AssertionError(f"no connection: {error}") from error

    def send(self, data: bytes) -> None:
        """Send all of *data*."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise AssertionError(f"the server does not take a request: {error}") from error

    def receive(self, size: int) -> bytes:
        """The next *size* bytes."""
        data = bytearray(size)
        with memoryview(data) as room:
            done = 0
            while done < size:
                try:
                    count = self.sock.recv_into(room[done:])
                except TimeoutError as error:
                    raise AssertionError(f"no answer within {PATIENCE} seconds") from error
                except OSError as error:
                    raise AssertionError(f"the connection broke: {error}") from error
                assert count, "the server closed the connection instead of an answer"
                done += count
        return bytes(data)

    def answer(self) -> Answer:
        """The next answer's head."""
        code, length, kind, dtype, *shape, _ = ANSWER.unpack(self.receive(ANSWER.size))
        assert code in (FOUND, FAILED), f"an answer of code {code}"
        assert 0 <= length <= _LONGEST, f"an answer of {length} bytes"
        one, two, three, four = shape
        return Answer(code, length, Tensor(kind, dtype, (one, two, three, four)))

    def put(self, key: bytes, value: bytes, tensor: Tensor | None = None) -> None:
        """Put *value*, which has no answer."""
        self.send(request(Command.PUT, key, len(value), tensor))
        self.send(value)

    def get(self, key: bytes) -> bytes | None:
        """The value of *key*."""
        self.send(request(Command.GET, key))
        return self.value()

    def value(self) -> bytes | None:
        """Receive the answer to a GET: the value, or None."""
        answer = self.answer()
        return self.receive(answer.length) if answer.code == FOUND else None

    def exists(self, key: bytes) -> bool:
        """Return True if the server reports that it has *key*."""
        self.send(request(Command.EXIST, key))
        return self.answer().code == FOUND

    def healthy(self) -> bool:
        """Return True if the server reports that it is healthy."""
        self.send(request(Command.HEALTH, NO_VALUE))
        return self.answer().code == FOUND

    def names(self) -> list[bytes]:
        """The names that the server lists."""
        self.send(request(Command.LIST, NO_VALUE))
        return self.receive(self.answer().length).split(b"\n")

    def leave(self) -> bool:
        """Shut down sending; return True if the server closes the connection or answers in time.

        Then it has received all that was sent.
        """
        with suppress(OSError):  # the server has already closed the connection
            self.sock.shutdown(socket.SHUT_WR)
        try:
            self.sock.recv(ANSWER.size)
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """End the connection."""
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Keys:
    """Unique names, in the form that engines use; their values are overwritten afterwards."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def __call__(self, tail: str = "uint8") -> bytes:
        self.given.append(f"hexkv-check@1@0@{secrets.token_hex(8)}@{tail}".encode())
        return self.given[-1]


class WireCase(Whole):
    """The fixture that an author gives, and those derived from it."""

    @pytest.fixture
    def server(self) -> Address:
        """The address of the server."""
        raise NotImplementedError(f"give {type(self).__name__} a `server` fixture")

    @pytest.fixture
    def key(self, server: Address) -> Iterator[Keys]:
        """A function that returns a new name at each call."""
        keys = Keys()
        yield keys
        if keys.given:
            with Wire(server) as wire:
                for name in keys.given:
                    wire.put(name, b"", Tensor(0, 0))
                wire.exists(keys.given[-1])  # once it answers, it has read the others

    @pytest.fixture
    def wire(self, server: Address) -> Iterator[Wire]:
        """A connection."""
        with Wire(server) as wire:
            yield wire


@contextmanager
def still_serving(server: Address, key: Keys) -> Iterator[None]:
    """Check that the server still serves other clients after the block."""
    with Wire(server) as other:
        name = key()
        other.put(name, b"before")
        yield
        assert other.get(name) == b"before"
    with Wire(server) as late:
        assert late.get(name) == b"before", "a value was lost"
