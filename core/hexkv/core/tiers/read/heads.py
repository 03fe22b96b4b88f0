"""The beginnings of frames, which are read first when frames may be encoded and read in parts.

The places of the parts of a raw frame are known before it is read. Those of an encoded frame are
in its header; the places of the layers in them are at the start of its payload.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from hexkv.core.frames.codec import layer_parts, layers_per_part
from hexkv.core.frames.opening import part_span
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.read.encoding import by_layers
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.stores.answers import words
from hexkv.core.tiers.tier import Tier
from hexkv.ports import PAGE, ChunkSpec, CorruptFrame, KVLayout, LayerSerde

log = logging.getLogger(__name__)


def head_bytes(runtime: TierRuntime, tier: Tier, layout: KVLayout) -> int | None:
    """Return the bytes of a frame on *tier* with the places of its parts and layers.

    Zero if all new frames there are raw; ``None`` if they can only be read whole.
    """
    indexes = [0]
    for name in tier.rules.serdes:
        if name != RAW:
            serde = by_layers(runtime.serdes.get(name))
            if serde is None:
                return None
            try:
                indexes.append(PAGE + serde.index_bytes(layout))
            except Exception as error:  # noqa: BLE001 - a serde's failure is never the engine's
                log.warning("serde %s does not say how long its index is: %s", name, words(error))
                return None
    return max(indexes)


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a frame that can be read part by part."""

    data: memoryview
    """The header page, and at least what the serde needs to find the layers."""

    parts: tuple[int, ...]
    serde: LayerSerde | None
    """The serde that encoded the payload; ``None`` if it is raw."""

    name: str
    layers: tuple[tuple[int, int], ...] = ()
    """``(start, end)`` of each layer in an encoded payload."""

    @classmethod
    def of(cls, runtime: TierRuntime, data: memoryview, spec: ChunkSpec) -> Head | None:
        """Return the head of the frame of *spec*; ``None`` if it has to be read whole.

        The places of the layers are not verified yet: :meth:`open` does that with the first part.
        """
        try:
            header = runtime.codec.peek(data)
            found = header.key, header.tokens, header.raw_bytes
            if found != (spec.key, spec.tokens, spec.raw_bytes):
                return None
            raw_parts = layer_parts(spec.layout, spec.tokens)
            if header.serde == RAW:
                return cls(data, raw_parts, None, RAW) if header.parts == raw_parts else None
            serde = by_layers(runtime.serdes.get(header.serde))
            if serde is None or len(header.parts) != len(raw_parts):
                return None
            # An encoded payload is always smaller, and may not take more memory than the chunk.
            if header.payload_bytes >= spec.raw_bytes:
                return None
            index = data[PAGE : PAGE + min(serde.index_bytes(spec.layout), header.payload_bytes)]
            layers = serde.layer_parts(index, header.payload_bytes, spec.layout, spec.tokens)
        except CorruptFrame:
            return None
        return cls(data, header.parts, serde, header.serde, tuple(layers))

    def open(
        self, runtime: TierRuntime, part: int, data: memoryview, block: BlockLease, spec: ChunkSpec
    ) -> bool:
        """Verify one encoded part, then decode its layers into *block*. True if it was whole.

        Args:
            runtime: records the speed of the serde.
            part: the number of the part.
            data: the bytes of the part in the frame.
            block: of a raw chunk.
            spec: of that chunk.
        """
        if self.serde is None:
            raise ValueError("a raw part is verified where it lies")
        try:
            runtime.codec.check_part(self.data, part, data)
        except CorruptFrame:
            return False
        at = part_span(self.parts, part)[0] - PAGE
        step, payload = layers_per_part(spec.layout), block.payload
        for layer in range(part * step, min((part + 1) * step, spec.layout.layers)):
            start, end = self.layers[layer]
            if not at <= start <= end <= at + len(data):
                return False
            first, last = spec.layout.layer_span(layer, spec.tokens)
            began = runtime.clock.now()
            self.serde.decode_layer(
                data[start - at : end - at], layer, spec.layout, spec.tokens, payload[first:last]
            )
            runtime.speeds.decoded(self.name, last - first, began, runtime.clock.now())
        return True
