"""Loads past the host: from a store directly into the device's memory, and verified there.

For raw chunks on a tier whose store reads to devices, into a window that lends room there. Chunks
that fail to load this way are read as usual: no failure here causes a miss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.requests.accounts import Arrived
from hexkv.core.requests.decoding import Scattering
from hexkv.core.requests.request import PromptRequest
from hexkv.core.tiers.read.direct import behind_header
from hexkv.ports import (
    ChunkService,
    ChunkSpec,
    Deadline,
    DeviceKV,
    DeviceRoom,
    RoomSpan,
    Span,
    SupportsDeviceRoom,
    Transfer,
)

log = logging.getLogger(__name__)

_NOTHING = memoryview(b"")


class PastHost:
    """Loads past the host for the chunks of one retrieve."""

    def __init__(
        self,
        chunks: ChunkService,
        copier: Copier,
        request: PromptRequest,
        prompt: Prompt,
        found: Sequence[str],
        deadline: Deadline,
    ) -> None:
        """Load chunks of *prompt*, each from the tier where it was found."""
        self._chunks = chunks
        self._copier = copier
        self._device = request.device
        self._prompt = prompt
        self._found = found
        self._owner = request.owner
        self._laps = request.laps
        self._deadline = deadline
        able = {tier for tier in {*found} if chunks.reads_to_devices(tier)}
        self.numbers = {i for i, tier in enumerate(found) if tier in able}
        """Chunks to read this way, without those that were tried and failed."""

    def load(self, number: int, most: int, arrived: Arrived) -> int:
        """Load up to *most* chunks of one tier from *number* on, as far as these are to be.

        Return how many *arrived*.

        Raises:
            InvalidRequest: the device raised it.
        """
        if number not in self.numbers:
            return 0
        tier, end = self._found[number], number
        while end < number + most and end in self.numbers and self._found[end] == tier:
            end += 1
        part, specs = self._prompt.part(number, end), self._prompt.specs(number, end)
        count = 0
        room = self._room(sum(map(behind_header, specs)))
        if room is not None:
            try:
                count = self._chunks.read_to_room(tier, specs, room, self._deadline)
                if count and not self._scatter(part, specs[:count], room):
                    count = 0
            finally:
                self._copier.release([room])  # type: ignore[list-item]
        if not count:
            self.numbers.difference_update(range(number, end))
            return 0
        self._laps.mark(("read", tier, self._laps.now()))
        arrived.add(part.part(0, count), [tier] * count)
        return count

    def _room(self, size: int) -> DeviceRoom | None:
        try:
            if isinstance(self._device, SupportsDeviceRoom):
                return self._device.device_room(size, self._owner)
        except Exception:
            log.exception("the device lends no room")
        return None

    def _scatter(self, part: Prompt, specs: Sequence[ChunkSpec], room: DeviceRoom) -> bool:
        starts = accumulate((behind_header(spec) for spec in specs[:-1]), initial=0)
        spans = [
            RoomSpan(start, end, at)
            for start, end, at in zip(part.starts, part.ends, starts, strict=False)
        ]
        window = _FromRoom(self._device, room, spans)
        none = [Span(0, 0, _NOTHING)]
        # The copier only holds and releases a room, as it does a lease.
        return self._copier.copy(
            window,
            none,
            [room],  # type: ignore[list-item]
            self._owner,
            self._deadline,
            gather=False,
        )


class _FromRoom(Scattering):
    """A window whose every scatter copies a room into the device."""

    def __init__(self, device: DeviceKV, room: DeviceRoom, spans: Sequence[RoomSpan]) -> None:
        super().__init__(device)
        self._room = room
        self._spans = spans

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        del spans, layers
        return self._room.scatter(self._spans)
