"""Encoding: choose the form of a chunk on a tier, encode it and decode it."""

from __future__ import annotations

import logging
from itertools import pairwise

from hexkv.core.frames.codec import layers_per_part
from hexkv.core.frames.opening import Opening, opened
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.stores.bandwidth import Encoding
from hexkv.core.tiers.stores.checked import CheckedSerde
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkSpec,
    FrameHeader,
    KVLayout,
    LayerSerde,
    Lease,
    Reason,
    Serde,
    StoreError,
    frame_bytes,
)

log = logging.getLogger(__name__)


def form_on(runtime: TierRuntime, tier: Tier, lease: Lease, spec: ChunkSpec) -> str:
    """Return which of the forms of *tier* makes the raw chunk of *lease* available soonest.

    The first form, until reads of the tier have measured its speed. A form that was never used, or
    not recently, is measured on this chunk: it costs the worker an encoding.
    """
    names, link = tier.rules.serdes, tier.link.rate
    if len(names) == 1 or link is None:
        return names[0]
    forms = [_form(runtime, name, tier.rules.lane.workers, lease, spec) for name in names]
    known = [form for form in forms if form is not None]
    best = min(known, key=lambda form: form.seconds(spec.raw_bytes, link), default=None)
    return names[0] if best is None else best.serde


def _form(
    runtime: TierRuntime, name: str, workers: int, lease: Lease, spec: ChunkSpec
) -> Encoding | None:
    """Return a form as measured; ``None`` if it failed, or is being measured."""
    if name == RAW:
        return Encoding(RAW)
    serde = runtime.serdes[name]
    if runtime.speeds.due(serde.name, runtime.clock.now()):
        try:
            _measure(runtime, serde, lease, spec)
        except Exception as error:  # noqa: BLE001 - a serde's error must not leave the worker
            log.warning("serde %s could not be measured: %s", name, error)
    return runtime.speeds.form(name, serde.name, workers)


def _measure(runtime: TierRuntime, serde: Serde, lease: Lease, spec: ChunkSpec) -> None:
    payload, back = scratch(serde.bound(spec.raw_bytes)), scratch(spec.raw_bytes)
    payload = payload[: serde.encode(lease.payload, spec.layout, spec.tokens, payload)]
    runtime.speeds.encoded(serde.name, spec.raw_bytes, frame_bytes(len(payload)))
    serde.decode(payload, spec.layout, spec.tokens, back)  # may have to be compiled
    began = runtime.clock.now()
    serde.decode(payload, spec.layout, spec.tokens, back)
    runtime.speeds.decoded(serde.name, spec.raw_bytes, began, runtime.clock.now())


def encode(runtime: TierRuntime, key: ChunkKey, lease: Lease, name: str) -> memoryview | None:
    """Return the sealed frame of a raw block, encoded by serde *name*; ``None`` if no smaller.

    Raises:
        StoreError: the serde failed.
    """
    serde, spec = runtime.serdes[name], lease.spec
    if spec is None:
        return None
    try:
        frame = scratch(frame_bytes(serde.bound(spec.raw_bytes)))
        used = serde.encode(lease.payload, spec.layout, spec.tokens, frame[PAGE:])
        parts = parts_of(serde, frame[PAGE : PAGE + used], spec.layout, spec.tokens)
    except Exception as error:  # a serde's error must not leave the worker
        raise StoreError(f"serde {name} failed: {type(error).__name__}: {error}") from error
    runtime.speeds.encoded(serde.name, spec.raw_bytes, frame_bytes(used))
    if frame_bytes(used) >= len(lease.frame):
        return None
    frame = frame[: frame_bytes(used)]
    header = FrameHeader(
        key=key,
        identity=spec.identity,
        tokens=spec.tokens,
        serde=serde.name,
        raw_bytes=spec.raw_bytes,
        payload_bytes=used,
        created=runtime.clock.wall(),
        position=spec.position,
        parts=parts,
    )
    runtime.codec.seal(frame, header)
    return frame


def parts_of(serde: Serde, payload: memoryview, layout: KVLayout, tokens: int) -> tuple[int, ...]:
    """Return the ends of the parts of an encoded payload, for its frame; empty: it is read whole.

    The layers of each part are those of the same part of a raw payload. The index before the first
    layer, with the positions of the others, belongs to the first part.
    """
    layered = by_layers(serde)
    if layered is None:
        return ()
    index = payload[: layered.index_bytes(layout)]
    spans = layered.layer_parts(index, len(payload), layout, tokens)
    step = layers_per_part(layout)
    ends = tuple(spans[min(i + step, len(spans)) - 1][1] for i in range(0, len(spans), step))
    # The frame is sealed with these: a payload whose parts are out of order is read whole.
    in_order = all(end == start for (_, end), (start, _) in pairwise(spans))
    if not in_order or ends[-1] != len(payload) or any(a >= b for a, b in pairwise((0, *ends))):
        return ()
    return ends


def by_layers(serde: Serde | None) -> LayerSerde | None:
    """Return *serde* if it can decode one layer from a part of a payload, else ``None``."""
    return serde if isinstance(serde, CheckedSerde) and serde.per_layer else None


def open_into(
    runtime: TierRuntime, frame: memoryview, key: ChunkKey, block: Lease
) -> Reason | None:
    """Verify *frame* and copy its chunk into *block*, decoding it if necessary.

    Return why it is unusable, or ``None`` if it is the chunk of *key* with the spec of the block.
    """
    found = opened(Opening(runtime.codec, frame), key)
    return found if isinstance(found, Reason) else bring_into(runtime, found, frame, block)


def bring_into(
    runtime: TierRuntime, header: FrameHeader, frame: memoryview, block: Lease
) -> Reason | None:
    """Copy the chunk of a verified *frame* with *header* into *block*; see :func:`open_into`."""
    spec = block.spec
    if spec is None or header.tokens != spec.tokens or header.raw_bytes != spec.raw_bytes:
        return Reason.CORRUPT
    if header.serde == RAW:
        # A raw frame is as long as the block, so it was read in place.
        return None if header.payload_bytes == header.raw_bytes else Reason.CORRUPT
    serde = runtime.serdes.get(header.serde)
    if serde is None:
        return Reason.UNKNOWN_SERDE
    payload = frame[PAGE : PAGE + header.payload_bytes]
    began = runtime.clock.now()
    try:
        serde.decode(payload, spec.layout, spec.tokens, block.payload)
    except Exception as error:  # noqa: BLE001 - a serde's error must not leave the worker
        log.warning("serde %s could not decode a verified frame: %s", header.serde, error)
        return Reason.CORRUPT
    runtime.speeds.decoded(serde.name, spec.raw_bytes, began, runtime.clock.now())
    return None


def scratch(size: int) -> memoryview:
    """Return memory for an encoded frame, freed when the chunk is decoded."""
    return memoryview(bytearray(size))
