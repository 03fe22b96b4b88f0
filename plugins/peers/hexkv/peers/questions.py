"""Questions between peers over a channel: a kind, and a body.

All numbers are little-endian::

    have   keys                          -> a byte each: 1 for a chunk that an own tier has
    busy   keys                          -> a byte each: 1 for one that an own tier has, and that
                                            is not lent while others are being given it
    self                                 -> generation, lengths of name and address, both, and
                                            where administration is served

An answer is checked like all other input from a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error

from hexkv.ports import (
    KEY_BYTES,
    KIND_BYTES,
    MAX_QUESTION,
    ChunkKey,
    InvalidRequest,
    Member,
    StoreUnreachable,
)

HAVE = b"have"
BUSY = b"busy"
SELF = b"self"

MOST_KEYS = (MAX_QUESTION - KIND_BYTES) // KEY_BYTES
"""The most keys in one question."""

_MEMBER = Struct("<QBH")


def keys_in(body: bytes) -> list[ChunkKey]:
    """Return the keys in a question.

    Raises:
        InvalidRequest: these are no keys.
    """
    if len(body) % KEY_BYTES:
        raise InvalidRequest(f"{len(body)} bytes are no keys")
    return [ChunkKey(body[at : at + KEY_BYTES]) for at in range(0, len(body), KEY_BYTES)]


def ask_of_each(
    ask: Callable[[bytes, bytes], bytes], keys: Sequence[ChunkKey], kind: bytes = HAVE
) -> list[bool]:
    """Return a peer's answer for each chunk: True if it has it.

    Args:
        ask: sends a question of a kind and a body, and returns the answer.
        keys: the chunks, any number of them.
        kind: of the question: ``HAVE`` or ``BUSY``.

    Raises:
        StoreUnreachable: the peer does not answer for each chunk.
    """
    found: list[bool] = []
    for first in range(0, len(keys), MOST_KEYS):
        some = keys[first : first + MOST_KEYS]
        answer = ask(kind, b"".join(some))
        if len(answer) != len(some) or answer.strip(b"\0\1"):
            raise StoreUnreachable("a peer does not say so of each chunk")
        found += map(bool, answer)
    return found


def pack_member(member: Member) -> bytes:
    """Return the description of a process for its peers."""
    name, address = member.name.encode(), member.address.encode()
    head = _MEMBER.pack(member.generation, len(name), len(address))
    return head + name + address + member.admin.encode()


def unpack_member(answer: bytes) -> Member:
    """Return a peer's description of itself.

    Raises:
        StoreUnreachable: it is not valid.
    """
    try:
        generation, *lengths = _MEMBER.unpack_from(answer)
        address = _MEMBER.size + lengths[0]
        admin = address + lengths[1]
        name = answer[_MEMBER.size : address].decode()
        return Member(name, generation, answer[address:admin].decode(), answer[admin:].decode())
    except (error, UnicodeDecodeError, InvalidRequest) as problem:
        raise StoreUnreachable("a peer sends no valid membership") from problem
