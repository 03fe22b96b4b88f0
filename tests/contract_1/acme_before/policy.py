"""Least recently used as a policy. Put your idea in its place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from hexkv.ports import ChunkKey, Policy


class AcmePolicy:
    """Evicts what was not used for longest, the end of a prompt first."""

    def __init__(self) -> None:
        self._order: OrderedDict[ChunkKey, None] = OrderedDict()

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        del after
        for key in reversed(keys):
            self._order[key] = None

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        for key in reversed(keys):
            self._order.move_to_end(key)

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        del evicted
        del self._order[key]

    def victims(self) -> Iterator[ChunkKey]:
        return iter(self._order)


def _is_a_policy(policy: AcmePolicy) -> Policy:
    return policy  # a type checker checks here that AcmePolicy has the port's methods
