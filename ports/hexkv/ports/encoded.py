"""An ability of device windows: to decode chunks themselves while they load them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.device import Transfer
from hexkv.ports.serde import Serde


class EncodedSpan(NamedTuple):
    """A run of token positions, and the payload that a serde made of their chunk."""

    start: int
    end: int
    """Positions ``[start, end)`` of the sequence."""

    payload: memoryview
    """All of it, and nothing behind it."""


@runtime_checkable
class SupportsEncoded(Protocol):
    """A window that takes payloads of some serdes as they are.

    Fewer bytes cross the bus, and no processor of the host decodes them. For windows whose device
    decodes as fast as it is given KV. Called as the methods of the window are.
    """

    def decodes(self, serde: Serde) -> bool:
        """True if :meth:`scatter_encoded` takes what *serde* encoded, of this window's layout."""
        ...

    def scatter_encoded(self, serde: Serde, spans: Sequence[EncodedSpan]) -> Transfer:
        """Decode each span's payload and copy all of its layers into the device.

        What arrives is what :meth:`Serde.decode` gives, bit for bit. The memory of payloads
        belongs to the transfer as that of chunks does. A position without a place is passed over.
        The wait of the transfer raises :class:`CorruptFrame` once it is over if a payload turned
        out not to be what the serde writes: what the spans' positions hold is of no use then.

        Raises:
            InvalidRequest: before anything moves: a span leaves the window.
            CorruptFrame: before anything moves: a payload is not what the serde writes for
                such a chunk.
        """
        ...


@runtime_checkable
class SupportsEncodedLayers(SupportsEncoded, Protocol):
    """One that takes some layers of a payload before the others have arrived."""

    def scatter_encoded_layers(
        self, serde: Serde, spans: Sequence[EncodedSpan], layers: range
    ) -> Transfer:
        """Likewise *layers* alone, a run of them; for serdes with parts of each layer.

        Of each payload only its index and what belongs to these layers is looked at: the rest may
        be written meanwhile.

        Raises:
            InvalidRequest: before anything moves: a span leaves the window, or there are no
                such layers.
            CorruptFrame: before anything moves: what is looked at is not what the serde writes.
        """
        ...
