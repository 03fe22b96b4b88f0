"""LMCache's ``lm://`` wire, which its published server and connector speak.

Native 32-bit integers, little-endian on every machine that it runs on. A request is nine of
them and a key of 150 bytes, padded with blanks; an answer is nine. Their order differs::

    request  command length format dtype location shape shape shape shape key
    answer   code    length format dtype shape shape shape shape location

PUT is followed by ``length`` bytes and never answered; GET is answered with as many. There is
no batch, no deletion, no authentication and no checksum. The published server lacks LIST; it is
answered here with the keys, one per line, so a key with a line break in it names no value.

Format, dtype, shape and location describe a tensor. To a server they are only numbers, which
it returns unchanged.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage
from hexkv.ports import ChunkKey

KEY_LENGTH = 150
REQUEST = Struct(f"<9i{KEY_LENGTH}s")
ANSWER = Struct("<9i")
LONGEST = (1 << 31) - 1
"""The most bytes of a value on the wire."""


class Command(IntEnum):
    """The command of a request."""

    PUT = 1
    GET = 2
    EXIST = 3
    LIST = 4
    HEALTH = 5


SUCCESS = 200
FAIL = 400


class Tensor(NamedTuple):
    """The wire's description of a value, besides its length."""

    format: int
    dtype: int
    shape: tuple[int, int, int, int]
    location: int = 0


NOTHING = Tensor(1, 2, (0, 0, 0, 0))
"""The published ends' description without a tensor: the first format, float16."""

TOMBSTONE = Tensor(0, 0, (0, 0, 0, 0))
"""The description of a tombstone, which has no bytes and replaces a deleted chunk. No tensor has
it."""


class RequestHead(NamedTuple):
    """A request, without the bytes that follow it."""

    command: Command
    key: bytes
    length: int
    tensor: Tensor

    def pack(self) -> bytes:
        """The bytes of the request.

        Raises:
            ValueError: the key or the length is too long; or the key is no name.
        """
        if len(self.key) > KEY_LENGTH:
            raise ValueError(f"a key has at most {KEY_LENGTH} bytes")
        if self.command in _NAMING and not is_name(self.key):
            raise ValueError(f"{self.key!r} is no line of a listing")
        if not 0 <= self.length <= LONGEST:
            raise ValueError(f"{self.length} bytes are more than the wire can say")
        it = self.tensor
        key = self.key.ljust(KEY_LENGTH)
        return REQUEST.pack(
            self.command, self.length, it.format, it.dtype, it.location, *it.shape, key
        )


class AnswerHead(NamedTuple):
    """An answer, without the bytes that follow it."""

    found: bool
    length: int
    tensor: Tensor

    def pack(self) -> bytes:
        """The bytes of the answer."""
        it = self.tensor
        code = SUCCESS if self.found else FAIL
        return ANSWER.pack(code, self.length, it.format, it.dtype, *it.shape, it.location)


def parse_request(data: bytes) -> RequestHead:
    """The request in ``REQUEST.size`` bytes.

    Raises:
        BadMessage: it is not a valid request.
    """
    command, length, form, dtype, location, a, b, c, d, padded = REQUEST.unpack(data)
    key = padded.rstrip(b" ")
    if command not in _COMMANDS or length < 0:
        raise BadMessage("no request of the lm protocol")
    if command in _NAMING and not is_name(key):
        raise BadMessage("a name of the lm protocol is one line, and not empty")
    return RequestHead(Command(command), key, length, Tensor(form, dtype, (a, b, c, d), location))


def parse_answer(data: bytes) -> AnswerHead:
    """The answer in ``ANSWER.size`` bytes.

    Raises:
        BadMessage: it is not a valid answer.
    """
    code, length, form, dtype, a, b, c, d, location = ANSWER.unpack(data)
    if code not in (SUCCESS, FAIL) or length < 0:
        raise BadMessage("no answer of the lm protocol")
    return AnswerHead(code == SUCCESS, length, Tensor(form, dtype, (a, b, c, d), location))


def is_name(key: bytes) -> bool:
    """True if *key* can name a value: LIST returns one name per line."""
    return len(key.splitlines()) == 1 and not key.endswith((b"\n", b"\r"))


def name_of(key: ChunkKey) -> bytes:
    """The name of a chunk on this wire.

    The published server parses a key: model, world size, worker, hash, dtype.
    """
    return b"hexkv@1@0@" + key.hex().encode() + b"@uint8"


def frame_tensor(size: int) -> Tensor:
    """The description of a frame: a binary object of *size* bytes."""
    return Tensor(4, 6, (size, 0, 0, 0))


_COMMANDS = frozenset(Command)
_NAMING = frozenset([Command.PUT, Command.GET, Command.EXIST])
"""Commands about the value that the key names; the others ignore the key."""

STARTS = tuple(command.to_bytes(4, "little") for command in Command)
"""The first bytes of connections of this wire."""
