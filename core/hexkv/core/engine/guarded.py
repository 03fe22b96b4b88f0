"""Results of calls that go on after them: each step enters by the engine's door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from hexkv.core.engine.calls import Door
from hexkv.ports import (
    Deadline,
    Hold,
    LayeredRead,
    LayeredWrite,
    Lease,
    Publishing,
    Reason,
    Retrieved,
    StoreReport,
)


class GuardedRead:
    """See :class:`hexkv.ports.LayeredRead`."""

    def __init__(self, layers: LayeredRead, door: Door) -> None:
        self._layers = layers
        self._door = door

    @property
    def hit_tokens(self) -> int:
        return self._layers.hit_tokens

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        return self._door.do(next, self._layers)

    def result(self) -> Retrieved:
        return self._door.do(self._layers.result)


class GuardedWrite:
    """See :class:`hexkv.ports.LayeredWrite`."""

    def __init__(self, layers: LayeredWrite, door: Door) -> None:
        self._layers = layers
        self._door = door

    def layer_done(self, layer: int) -> None:
        self._door.do(self._layers.layer_done, layer)

    def result(self) -> StoreReport:
        return self._door.do(self._layers.result)


class GuardedHold:
    """See :class:`hexkv.ports.Hold`."""

    def __init__(self, hold: Hold, door: Door) -> None:
        self._hold = hold
        self._door = door

    @property
    def done(self) -> bool:
        return self._door.do(lambda: self._hold.done)

    def wait(self, deadline: Deadline) -> bool:
        return self._door.do(self._hold.wait, deadline)

    @property
    def leases(self) -> Sequence[Lease | None]:
        return self._door.do(lambda: self._hold.leases)

    @property
    def reasons(self) -> Sequence[Reason | None]:
        return self._door.do(lambda: self._hold.reasons)

    @property
    def origins(self) -> Sequence[str]:
        return self._door.do(lambda: self._hold.origins)

    def release(self) -> None:
        self._door.give_back(self._hold.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class GuardedPublishing:
    """See :class:`hexkv.ports.Publishing`."""

    def __init__(self, publishing: Publishing, door: Door) -> None:
        self._publishing = publishing
        self._door = door

    @property
    def done(self) -> bool:
        return self._door.do(lambda: self._publishing.done)

    def wait(self, deadline: Deadline) -> bool:
        return self._door.do(self._publishing.wait, deadline)

    @property
    def tiers(self) -> Mapping[str, Sequence[bool]]:
        return self._door.do(lambda: self._publishing.tiers)
