"""Chunks as objects of the store: their names, and the master's records of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from hexkv.adapters.mooncake._native import ABSENT, NOT_READY, Client
from hexkv.ports import ChunkKey

EMPTY: Final = b"hexkv: no bytes."
"""The mark stored for a frame of no bytes, because Mooncake keeps no empty objects."""


class ReadableObject(NamedTuple):
    """An object that can be read."""

    size: int
    places: frozenset[tuple[str, int]]
    """Node and address of each replica that is in memory."""


def name_of(prefix: str, key: ChunkKey) -> str:
    """The object's name."""
    return prefix + key.hex()


def look(client: Client, names: Sequence[str]) -> list[ReadableObject | int]:
    """Each object, or the code for its absence."""
    # Check first: Mooncake logs an error line for each object that the next call does not find.
    codes = client.batch_is_exist(names)
    there = [name for name, code in zip(names, codes, strict=True) if code == 1]
    found = _describe(client, there)
    return [
        found.get(name, NOT_READY) if code == 1 else code or ABSENT
        for name, code in zip(names, codes, strict=True)
    ]


def _describe(client: Client, names: Sequence[str]) -> dict[str, ReadableObject]:
    """The size and places of each object that exists."""
    found = {}
    for name, replicas in client.batch_get_replica_desc(list(set(names))).items():
        places = [
            replica.get_memory_descriptor().buffer_descriptor
            for replica in replicas
            if replica.is_memory_replica()
        ]
        size = places[0].size if places else client.get_size(name)
        if size >= 0:
            where = frozenset((place.transport_endpoint, place.buffer_address) for place in places)
            found[name] = ReadableObject(size, where)
    return found


def fetch(
    client: Client, addresses: Sequence[int], names: Sequence[str], found: Sequence[ReadableObject]
) -> list[int]:
    """Read each object to its address; return its size if read completely, or a negative code."""
    sizes = [one.size for one in found]
    codes = client.batch_get_into(names, addresses, sizes)
    return _still_there(client, names, found, sizes, codes)


def fetch_part(
    client: Client,
    addresses: Sequence[int],
    name: str,
    found: ReadableObject,
    start: int,
    size: int,
) -> list[int]:
    """Read *size* bytes of one object, from *start* on, to the single address; as :func:`fetch`."""
    (((code,),),) = client.get_into_ranges(addresses, [[name]], [[[0]]], [[[start]]], [[[size]]])
    return _still_there(client, [name], [found], [size], [code])


def _still_there(
    client: Client,
    names: Sequence[str],
    found: Sequence[ReadableObject],
    sizes: Sequence[int],
    codes: Sequence[int],
) -> list[int]:
    """Replace *codes* of a read of *sizes* bytes by ``ABSENT`` where they cannot be trusted.

    Another client may have removed an object during the read, and its memory may hold another
    object since. So an object that is not where it was before counts as absent.
    """
    again = _describe(client, names)
    return [
        code if code < 0 or (code == size and again.get(name) == before) else ABSENT
        for name, before, size, code in zip(names, found, sizes, codes, strict=True)
    ]


def clear(client: Client, names: Sequence[str]) -> list[int]:
    """Remove the object of each of *names*, none of them twice; return 0 or a negative code."""
    codes = client.batch_is_exist(names)
    there = [name for name, code in zip(names, codes, strict=True) if code == 1]
    removed = dict(zip(there, client.batch_remove(there, True), strict=True)) if there else {}
    codes = [removed.get(name, code) for name, code in zip(names, codes, strict=True)]
    return [0 if code == ABSENT else code for code in codes]
