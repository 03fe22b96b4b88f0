"""An ability of device windows: decoding chunks on the device while loading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.device import Transfer
from hexkv.ports.serde import Serde


class EncodedSpan(NamedTuple):
    """A run of token positions, and the encoded payload of their chunk."""

    start: int
    end: int
    """Positions ``[start, end)`` of the sequence."""

    payload: memoryview
    """The whole payload, without padding."""


@runtime_checkable
class SupportsEncoded(Protocol):
    """A window that takes encoded payloads of some serdes.

    Fewer bytes cross the bus, and the host's CPU decodes nothing. For windows whose device
    decodes as fast as it receives KV. Called as the methods of the window are.
    """

    def decodes(self, serde: Serde) -> bool:
        """True if :meth:`scatter_encoded` takes payloads of *serde* for this window's layout."""
        ...

    def scatter_encoded(self, serde: Serde, spans: Sequence[EncodedSpan]) -> Transfer:
        """Decode each span's payload and copy all of its layers into the device.

        The result equals that of :meth:`Serde.decode`, bit for bit. The memory of payloads
        belongs to the transfer as that of chunks does. A position without a slot is skipped.
        After the end of the transfer its ``wait`` raises :class:`CorruptFrame` if a payload
        turned out to be invalid: then the content of the spans' positions is of no use.

        Raises:
            InvalidRequest: before anything is copied: a span is outside of the window.
            CorruptFrame: before anything is copied: a payload is not a valid encoding of such
                a chunk.
        """
        ...


@runtime_checkable
class SupportsEncodedLayers(SupportsEncoded, Protocol):
    """A window that takes some layers of a payload before the others have arrived."""

    def scatter_encoded_layers(
        self, serde: Serde, spans: Sequence[EncodedSpan], layers: range
    ) -> Transfer:
        """Decode and copy only *layers*, a run of them; for serdes with parts of each layer.

        Of each payload only its index and the parts of these layers are read: the rest may be
        written at the same time.

        Raises:
            InvalidRequest: before anything is copied: a span is outside of the window, or there
                are no such layers.
            CorruptFrame: before anything is copied: the index or a part read is invalid.
        """
        ...
