"""Reads past the host: from a store into the memory of a device, which verifies the bytes.

Chunks that fail to arrive this way are read as usual: no failure here causes a miss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice

from hexkv.core.frames.opening import (
    PAYLOAD_CHECKSUM,
    HeaderPage,
    checked_digests,
    part_span,
)
from hexkv.core.io.rules import Priority, Refused
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    PAGE,
    ChunkSpec,
    CounterName,
    Deadline,
    DeviceRange,
    DeviceRoom,
    HistogramName,
    Hit,
    StoreError,
    frame_bytes,
)

log = logging.getLogger(__name__)


def behind_header(spec: ChunkSpec) -> int:
    """Bytes of a raw chunk's frame behind its header page."""
    return frame_bytes(spec.raw_bytes) - PAGE


def read_to_room(
    runtime: TierRuntime,
    tier: Tier,
    specs: Sequence[ChunkSpec],
    room: DeviceRoom,
    deadline: Deadline,
) -> int:
    """Have a worker of *tier* fill and verify *room*. Return the number of leading whole chunks."""
    kept = room.share(f"read {tier.name}")
    size = sum(map(behind_header, specs))

    def work(go: bool) -> tuple[int, bool | None]:
        try:
            return _fill(runtime, tier, specs, kept, deadline) if go else (0, None)
        except Exception:
            log.exception("tier %s: reading past the host failed", tier.name)
            return 0, False
        finally:
            kept.release()

    try:
        ticket = tier.submit(Priority.GET, size, work, deadline)
    except Refused:
        kept.release()
        return 0
    if not ticket.wait(deadline):
        ticket.abandon()
        return 0
    return ticket.result or 0


def _fill(
    runtime: TierRuntime,
    tier: Tier,
    specs: Sequence[ChunkSpec],
    room: DeviceRoom,
    deadline: Deadline,
) -> tuple[int, bool | None]:
    """Fill *room*, on a worker. Return the number of whole chunks; True if the store worked."""
    clock = runtime.clock
    began = clock.now()
    tier.link.began(began)
    room.bind()
    pages: list[memoryview] = []
    at = count = 0
    try:
        for spec in specs:
            page, length = memoryview(bytearray(PAGE)), behind_header(spec)
            into = DeviceRange(room.base, room.size, at, length)
            outcome = tier.calls.read_to_device(spec.key, page, into, deadline)
            if not isinstance(outcome, Hit):
                break
            pages.append(page)
            at += length
        read = at + PAGE * len(pages)
        tier.link.arrived(clock.now(), read)
        count = _whole(runtime, specs[: len(pages)], pages, room, deadline)
    finally:
        tier.link.ended(clock.now(), sum(spec.tokens for spec in specs[:count]))
    runtime.telemetry.observe(HistogramName.READ, clock.now() - began, tier=tier.name)
    runtime.telemetry.count(CounterName.READ_BYTES, read, tier=tier.name)
    # If no chunk came, the host's read finds out if the store fails.
    return count, bool(pages) or None


def _whole(
    runtime: TierRuntime,
    specs: Sequence[ChunkSpec],
    pages: Sequence[memoryview],
    room: DeviceRoom,
    deadline: Deadline,
) -> int:
    """Return how many frames from the first match *specs*, by digests from the device.

    All of them at once: the device hashes them in parallel. The host then reads a damaged
    frame again, and sets it aside.
    """
    found: list[HeaderPage] = []
    parts: list[tuple[int, int]] = []
    at = 0
    for spec, page in zip(specs, pages, strict=True):
        header = _header(runtime, spec, page)
        if header is None or (found and header.algorithm != found[0].algorithm):
            break
        found.append(header)
        ends = header.header.parts
        spans = [part_span(ends, i) for i in range(len(ends))]
        parts += [(at + start - PAGE, at + end - PAGE) for start, end in spans]
        at += behind_header(spec)
    if not found:
        return 0
    digests = room.digests(found[0].header.checksum, parts, deadline)
    if digests is None or len(digests) != len(parts):
        return 0
    rest = iter(digests)
    for count, header in enumerate(found):
        mine = list(islice(rest, len(header.header.parts)))
        if checked_digests(header, mine) != bytes(header.data[PAYLOAD_CHECKSUM]):
            return count
    return len(found)


def _header(runtime: TierRuntime, spec: ChunkSpec, page: memoryview) -> HeaderPage | None:
    """Return the header in *page*; ``None`` if it is not of the frame of *spec*."""
    try:
        found = runtime.codec.page(page)
    except StoreError:
        return None
    header = found.header
    said = (header.key, header.serde, header.tokens, header.payload_bytes)
    return found if said == (spec.key, RAW, spec.tokens, spec.raw_bytes) else None
