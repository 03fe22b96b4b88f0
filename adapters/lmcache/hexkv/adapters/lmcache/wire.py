"""LMCache's ``lm://`` wire, which its published server and connector speak.

Native 32-bit integers, little-endian on every machine that it runs on. A request is nine of
them and a key of 150 bytes, padded with blanks; an answer is nine. Their order differs::

    request  command length format dtype location shape shape shape shape key
    answer   code    length format dtype shape shape shape shape location

PUT is followed by ``length`` bytes and never answered; GET is answered with as many. There is
no batch, no deletion, no authentication and no checksum. What the published server leaves
out is LIST; it is answered here with the keys, one per line, so a key with a line break in
it names no value.

Format, dtype, shape and location describe a tensor. To a server they are only numbers, which
it gives back as it got them.
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
"""Bytes of a value, as far as the wire goes."""


class Command(IntEnum):
    """What a request asks for."""

    PUT = 1
    GET = 2
    EXIST = 3
    LIST = 4
    HEALTH = 5


SUCCESS = 200
FAIL = 400


class Tensor(NamedTuple):
    """What the wire says about a value beside its length."""

    format: int
    dtype: int
    shape: tuple[int, int, int, int]
    location: int = 0


NOTHING = Tensor(1, 2, (0, 0, 0, 0))
"""What the published ends say where there is no tensor: the first format, float16."""

TOMBSTONE = Tensor(0, 0, (0, 0, 0, 0))
"""With no bytes: what a store puts in the place of a chunk that it deletes. No tensor has it."""


class Request(NamedTuple):
    """A request, without the bytes that follow it."""

    command: Command
    key: bytes
    length: int
    tensor: Tensor

    def pack(self) -> bytes:
        """Its bytes.

        Raises:
            ValueError: the key is too long, or the length; or the key is no name.
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


class Answer(NamedTuple):
    """An answer, without the bytes that follow it."""

    found: bool
    length: int
    tensor: Tensor

    def pack(self) -> bytes:
        """Its bytes."""
        it = self.tensor
        code = SUCCESS if self.found else FAIL
        return ANSWER.pack(code, self.length, it.format, it.dtype, *it.shape, it.location)


def parse_request(data: bytes) -> Request:
    """The request in ``REQUEST.size`` bytes.

    Raises:
        BadMessage: it is none.
    """
    command, length, form, dtype, location, a, b, c, d, padded = REQUEST.unpack(data)
    key = padded.rstrip(b" ")
    if command not in _COMMANDS or length < 0:
        raise BadMessage("no request of the lm protocol")
    if command in _NAMING and not is_name(key):
        raise BadMessage("a name of the lm protocol is one line, and not empty")
    return Request(Command(command), key, length, Tensor(form, dtype, (a, b, c, d), location))


def parse_answer(data: bytes) -> Answer:
    """The answer in ``ANSWER.size`` bytes.

    Raises:
        BadMessage: it is none.
    """
    code, length, form, dtype, a, b, c, d, location = ANSWER.unpack(data)
    if code not in (SUCCESS, FAIL) or length < 0:
        raise BadMessage("no answer of the lm protocol")
    return Answer(code == SUCCESS, length, Tensor(form, dtype, (a, b, c, d), location))


def is_name(key: bytes) -> bool:
    """True if a value may be called *key*: LIST gives one name a line."""
    return len(key.splitlines()) == 1 and not key.endswith((b"\n", b"\r"))


def name_of(key: ChunkKey) -> bytes:
    """What a chunk is called on this wire.

    The published server takes a key apart: model, world size, worker, hash, dtype.
    """
    return b"hexkv@1@0@" + key.hex().encode() + b"@uint8"


def frame_tensor(size: int) -> Tensor:
    """How a frame is described: as a binary object of so many bytes."""
    return Tensor(4, 6, (size, 0, 0, 0))


_COMMANDS = frozenset(Command)
_NAMING = frozenset([Command.PUT, Command.GET, Command.EXIST])
"""Commands about the value that the key names; of the others the key says nothing."""

STARTS = tuple(command.to_bytes(4, "little") for command in Command)
"""How a connection of this wire begins."""
