"""Which chunks of one tier are pinned, and by whom. Used under the lock of the tier's index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from hexkv.ports import ChunkKey


class KeyPins:
    """Chunks that some owner uses. A chunk is pinned while anybody pins it."""

    def __init__(self) -> None:
        self.owned: dict[str, set[ChunkKey]] = {}
        """What each owner pins; nobody who pins nothing."""

        self._count: dict[ChunkKey, int] = {}

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._count

    def pin(self, owner: str, keys: AbstractSet[ChunkKey]) -> None:
        """Pin chunks for *owner*; twice counts once."""
        if keys:
            owned = self.owned.setdefault(owner, set())
            for key in keys - owned:
                self._count[key] = self._count.get(key, 0) + 1
            owned |= keys

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. How many there were."""
        owned = self.owned.pop(owner, set())
        for key in owned:
            if self._count[key] == 1:
                del self._count[key]
            else:
                self._count[key] -= 1
        return len(owned)

    def end(self, key: ChunkKey) -> None:
        """End every pin of a chunk."""
        if not self._count.pop(key, 0):
            return
        for owner in [owner for owner, owned in self.owned.items() if key in owned]:
            self.owned[owner].discard(key)
            if not self.owned[owner]:
                del self.owned[owner]

    def count(self) -> Mapping[str, int]:
        """How many chunks each owner pins; nobody who pins none."""
        return {owner: len(owned) for owner, owned in self.owned.items()}

    def derive(self, here: Collection[ChunkKey]) -> None:
        """Count anew, of the chunks that are *here*, after a change that did not end."""
        self._count = {}
        for owner, owned in list(self.owned.items()):
            left = {key for key in owned if key in here}
            if left:
                self.owned[owner] = left
            else:
                del self.owned[owner]
            for key in left:
                self._count[key] = self._count.get(key, 0) + 1
