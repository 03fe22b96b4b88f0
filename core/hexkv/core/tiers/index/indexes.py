"""The interface of a tier's index to the rest of the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from hexkv.core.tiers.index.bookkeeping import Reservation
from hexkv.ports import ChunkKey, Entry


class Index(Protocol):
    """The chunks of one tier: see :class:`~hexkv.core.tiers.index.index.TierIndex`.

    The index of a whole tier, or of one divided among tenants. The bodies here are those of
    :class:`Unindexed`, which records no chunks.
    """

    decides: ClassVar[bool]
    """True if this engine decides which chunks the tier holds, so that its index is reliable."""

    @property
    def policy(self) -> str:
        return ""

    @property
    def budget(self) -> int | None:
        return None

    @property
    def used(self) -> int:
        return 0

    @property
    def pinned(self) -> Mapping[str, int]:
        return {}

    def __len__(self) -> int:
        return 0

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        return [False] * len(keys)

    def size(self, key: ChunkKey) -> int | None:
        del key
        return None

    def keys(self) -> list[ChunkKey]:
        return []

    def ranked(self) -> list[ChunkKey]:
        return []

    def shares(self) -> Sequence[Index]:
        return []

    def pinned_by(self, owner: str) -> list[ChunkKey]:
        del owner
        return []

    def leaving(self, keys: Sequence[ChunkKey] | None = None) -> list[ChunkKey]:
        del keys
        return []

    def depart(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        return list(keys)

    def reserve(
        self, keys: Sequence[ChunkKey], sizes: Sequence[int], after: ChunkKey | None = None
    ) -> Reservation:
        del sizes, after
        return Reservation(list(dict.fromkeys(keys)))

    def commit(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        del keys
        return []

    def abort(self, keys: Sequence[ChunkKey]) -> None:
        del keys

    def deleted(self, keys: Sequence[ChunkKey]) -> None:
        del keys

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        del keys

    def discard(self, keys: Sequence[ChunkKey], *, force: bool = True) -> list[ChunkKey]:
        del force
        return list(keys)

    def resize(self, key: ChunkKey, size: int) -> list[ChunkKey] | None:
        del key, size
        return []

    def evict(self, size: int) -> list[ChunkKey]:
        del size
        return []

    def orphans(self) -> Sequence[ChunkKey]:
        return ()

    def restore(self, entries: Iterable[Entry]) -> list[ChunkKey]:
        del entries
        return []

    def pin(self, owner: str, keys: Sequence[ChunkKey]) -> int:
        del owner
        return len(keys)

    def unpin(self, owner: str) -> int:
        del owner
        return 0

    def assign(self, prefix: bytes, tenant: str) -> list[ChunkKey]:
        del prefix, tenant
        return []

    def used_by(self) -> Mapping[str, int]:
        return {}

    def quotas(self) -> Mapping[str, int]:
        return {}

    def limit(self, budget: int, quotas: Mapping[str, int]) -> list[ChunkKey]:
        del budget, quotas
        return []

    def trimmed(self) -> list[ChunkKey]:
        return []


class Unindexed(Index):
    """The index of a store that cannot list its chunks: other processes may write to it, too.

    It records no chunks, and allows every operation: each chunk may be written, deleted and
    replaced; none is ever evicted.
    """

    decides: ClassVar[bool] = False
