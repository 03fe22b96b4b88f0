"""Loads past the host: from a store directly into the device's memory, and verified there.

For raw chunks on a tier whose store reads to devices, into a window that lends room there. Chunks
that fail to load this way are read as usual: no failure here causes a miss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate, islice

from hexkv.core.frames.opening import (
    PAYLOAD_CHECKSUM,
    HeaderPage,
    checked_digests,
    part_span,
)
from hexkv.core.io.rules import Priority, Refused
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    PAGE,
    ChunkSpec,
    CounterName,
    Deadline,
    DeviceKV,
    DeviceRange,
    DeviceRoom,
    HistogramName,
    Hit,
    InvalidRequest,
    KVLayout,
    RoomSpan,
    Span,
    StoreError,
    SupportsDeviceRoom,
    Transfer,
    frame_bytes,
)

log = logging.getLogger("hexkv")

_NOTHING = memoryview(b"")


class PastHost:
    """Loads past the host for the chunks of one retrieve."""

    def __init__(
        self,
        runtime: TierRuntime,
        copier: Copier,
        device: DeviceKV,
        prompt: Prompt,
        found: Sequence[Tier],
        owner: str,
        deadline: Deadline,
    ) -> None:
        self._runtime = runtime
        self._copier = copier
        self._device = device
        self._prompt = prompt
        self._found = found
        self._owner = owner
        self._deadline = deadline
        self.numbers: set[int] = set()
        """Chunks to read this way, without those that were tried and failed."""

        able = {id(tier): tier for tier in found if tier.calls.reads_to_devices}
        if able and isinstance(device, SupportsDeviceRoom):
            self.numbers.update(i for i, tier in enumerate(found) if id(tier) in able)

    def load(self, number: int, most: int) -> int:
        """Load up to *most* chunks of one tier from *number* on. Return how many were loaded.

        Raises:
            InvalidRequest: the device raised it.
        """
        tier, end = self._found[number], number
        while end < number + most and end in self.numbers and self._found[end] is tier:
            end += 1
        part, specs = self._prompt.part(number, end), self._prompt.specs(number, end)
        count = 0
        room = self._room(sum(_behind(spec) for spec in specs))
        if room is not None:
            try:
                count = self._read(tier, specs, room)
                if count and not self._scatter(part, specs[:count], room):
                    count = 0
            finally:
                room.release()
        if not count:
            self.numbers.difference_update(range(number, end))
        return count

    def _room(self, size: int) -> DeviceRoom | None:
        try:
            if isinstance(self._device, SupportsDeviceRoom):
                return self._device.device_room(size, self._owner)
        except Exception:
            log.exception("the device lends no room")
        return None

    def _read(self, tier: Tier, specs: Sequence[ChunkSpec], room: DeviceRoom) -> int:
        """Have a worker fill and verify *room*. Return the number of leading whole chunks."""
        kept = room.share(f"read {tier.name}")
        size = sum(_behind(spec) for spec in specs)

        def work(go: bool) -> tuple[int, bool | None]:
            try:
                return self._fill(tier, specs, kept) if go else (0, None)
            except Exception:
                log.exception("tier %s: reading past the host failed", tier.name)
                return 0, False
            finally:
                kept.release()

        try:
            ticket = tier.submit(Priority.GET, size, work, self._deadline)
        except Refused:
            kept.release()
            return 0
        if not ticket.wait(self._deadline):
            ticket.abandon()
            return 0
        return ticket.result or 0

    def _fill(
        self, tier: Tier, specs: Sequence[ChunkSpec], room: DeviceRoom
    ) -> tuple[int, bool | None]:
        """Fill *room*, on a worker. Return the number of whole chunks; True if the store worked."""
        runtime, clock = self._runtime, self._runtime.clock
        began = clock.now()
        tier.link.began(began)
        room.bind()
        pages: list[memoryview] = []
        at = count = 0
        try:
            for spec in specs:
                page, length = memoryview(bytearray(PAGE)), _behind(spec)
                into = DeviceRange(room.base, room.size, at, length)
                outcome = tier.calls.read_to_device(spec.key, page, into, self._deadline)
                if not isinstance(outcome, Hit):
                    break
                pages.append(page)
                at += length
            read = at + PAGE * len(pages)
            tier.link.arrived(clock.now(), read)
            count = self._whole(specs[: len(pages)], pages, room)
        finally:
            tier.link.ended(clock.now(), sum(spec.tokens for spec in specs[:count]))
        runtime.telemetry.observe(HistogramName.READ, clock.now() - began, tier=tier.name)
        runtime.telemetry.count(CounterName.READ_BYTES, read, tier=tier.name)
        # If no chunk came, the host's read finds out if the store fails.
        return count, bool(pages) or None

    def _whole(
        self, specs: Sequence[ChunkSpec], pages: Sequence[memoryview], room: DeviceRoom
    ) -> int:
        """Return how many frames from the first match *specs*, by digests from the device.

        All of them at once: the device hashes them in parallel. The host then reads a damaged
        frame again, and sets it aside.
        """
        found: list[HeaderPage] = []
        parts: list[tuple[int, int]] = []
        at = 0
        for spec, page in zip(specs, pages, strict=True):
            header = self._header(spec, page)
            if header is None or (found and header.algorithm != found[0].algorithm):
                break
            found.append(header)
            ends = header.header.parts
            spans = [part_span(ends, i) for i in range(len(ends))]
            parts += [(at + start - PAGE, at + end - PAGE) for start, end in spans]
            at += _behind(spec)
        if not found:
            return 0
        digests = room.digests(found[0].header.checksum, parts, self._deadline)
        if digests is None or len(digests) != len(parts):
            return 0
        rest = iter(digests)
        for count, header in enumerate(found):
            mine = list(islice(rest, len(header.header.parts)))
            if checked_digests(header, mine) != bytes(header.data[PAYLOAD_CHECKSUM]):
                return count
        return len(found)

    def _header(self, spec: ChunkSpec, page: memoryview) -> HeaderPage | None:
        """Return the header in *page*; ``None`` if it is not of the frame of *spec*."""
        try:
            found = self._runtime.codec.page(page)
        except StoreError:
            return None
        header = found.header
        said = (header.key, header.serde, header.tokens, header.payload_bytes)
        return found if said == (spec.key, RAW, spec.tokens, spec.raw_bytes) else None

    def _scatter(self, part: Prompt, specs: Sequence[ChunkSpec], room: DeviceRoom) -> bool:
        starts = accumulate((_behind(spec) for spec in specs[:-1]), initial=0)
        spans = [
            RoomSpan(start, end, at)
            for start, end, at in zip(part.starts, part.ends, starts, strict=False)
        ]
        window = _FromRoom(self._device, room, spans)
        none = [Span(0, 0, _NOTHING)]
        # The copier only holds and releases a room, as it does a lease.
        return self._copier.copy(window, none, [room], self._deadline, gather=False)  # type: ignore[list-item]


class _FromRoom:
    """A window whose every scatter copies a room into the device."""

    def __init__(self, device: DeviceKV, room: DeviceRoom, spans: Sequence[RoomSpan]) -> None:
        self._device = device
        self._room = room
        self._spans = spans

    @property
    def layout(self) -> KVLayout:
        return self._device.layout

    @property
    def tokens(self) -> int:
        return self._device.tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        del spans, layers
        raise InvalidRequest("nothing is gathered past the host")

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        del spans, layers
        return self._room.scatter(self._spans)


def _behind(spec: ChunkSpec) -> int:
    """Bytes of a raw chunk's frame behind its header page."""
    return frame_bytes(spec.raw_bytes) - PAGE
