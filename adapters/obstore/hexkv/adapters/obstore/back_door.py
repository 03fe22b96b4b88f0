"""A bucket's objects without the store, for contracts, which must not use the store they check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore
from hexkv.adapters.obstore.places import BucketPrefix
from hexkv.ports import ChunkKey, Clock

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class ObjectDoor:
    """The library's plain calls, one after the other."""

    def __init__(self, place: BucketPrefix, store: ObjectStore, clock: Clock) -> None:
        del clock
        self._place = place
        self._store = store

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the bucket has it."""
        try:
            return bytes(obstore.get(self._store, self._place.name(key)).bytes())
        except FileNotFoundError:
            return None

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Store *frame* in the bucket."""
        obstore.put(self._store, self._place.name(key), frame, use_multipart=False)

    def keys(self) -> set[ChunkKey]:
        """Every key below the prefix."""
        listed = obstore.list(self._store, self._place.prefix or None)
        found = (self._place.key(each["path"]) for page in listed for each in page)
        return {key for key in found if key is not None}

    def close(self) -> None:
        """Nothing is kept open."""
