"""Loads of encoded chunks into a device that decodes them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import cast

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier, Copy
from hexkv.core.tiers.runtime import RAW
from hexkv.core.tiers.stores.checked import CheckedSerde
from hexkv.ports import (
    DeviceKV,
    EncodedSpan,
    InvalidRequest,
    KVLayout,
    Lease,
    Serde,
    Span,
    SupportsEncoded,
    SupportsEncodedLayers,
    Transfer,
)

log = logging.getLogger(__name__)


def decoded_by(
    serdes: Mapping[str, Serde], device: DeviceKV, *, by_layers: bool = False
) -> frozenset[str]:
    """Return the names, as in frames, of those of *serdes* whose payloads *device* decodes."""
    if not serdes or not hasattr(device, "decodes"):
        return frozenset()
    ability = SupportsEncodedLayers if by_layers else SupportsEncoded
    # The class first: for an instance Python 3.11 looks up each method of the protocol anew.
    if not issubclass(type(device), ability) and not isinstance(device, ability):
        return frozenset()
    decodes = cast("SupportsEncoded", device).decodes
    found: set[str] = set()
    for name, serde in serdes.items():
        try:
            # Each once, though configurations have further names for it.
            if name != serde.name or (by_layers and not serde.per_layer):
                continue
            if decodes(_inner(serde)) is True:
                found.add(serde.name)
        except Exception:
            log.exception("the device does not say whether it decodes %s", serde.name)
    return frozenset(found)


class Decodable(Collection[str]):
    """The result of :func:`decoded_by` for *device*, computed at its first use.

    Querying a window for all serdes takes as long as finding a short prompt, and is not needed for
    chunks that memory keeps raw.
    """

    def __init__(self, serdes: Mapping[str, Serde], device: DeviceKV) -> None:
        self._serdes = serdes
        self._device = device
        self._names: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        return name in self._known()

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def _known(self) -> frozenset[str]:
        if self._names is None:
            self._names = decoded_by(self._serdes, self._device)
        return self._names


def begin(
    serdes: Mapping[str, Serde],
    copier: Copier,
    device: DeviceKV,
    part: Prompt,
    leases: Sequence[Lease],
    owner: str,
    begun: list[Copy],
    layers: range | None = None,
) -> bool:
    """Queue the copies of the chunks of *part*, raw or encoded, into *device*: add them to *begun*.

    They are those of the call *owner*, one for each run of chunks in the same form. With *layers*,
    of only those. Return False if the device failed.

    Raises:
        InvalidRequest: the device raised it.
    """
    names = [RAW if lease.spec is None else lease.spec.serde for lease in leases]
    at = 0
    for name, run in groupby(names):
        end = at + len(list(run))
        some, spans = leases[at:end], part.part(at, end).spans(leases[at:end])
        window = device if name == RAW else _Decoding(device, _inner(serdes[name]))
        copy = copier.begin(window, spans, some, owner, gather=False, layers=layers)
        if copy is None:
            return False
        begun.append(copy)
        at = end
    return True


def is_raw(lease: Lease) -> bool:
    """True if the payload of *lease* is not encoded."""
    return lease.spec is None or lease.spec.serde == RAW


def _inner(serde: Serde) -> Serde:
    return serde.inner if isinstance(serde, CheckedSerde) else serde


class Scattering:
    """A window that scatters in a way of its own into *device*, and cannot gather."""

    def __init__(self, device: DeviceKV) -> None:
        self._device = device

    @property
    def layout(self) -> KVLayout:
        return self._device.layout

    @property
    def tokens(self) -> int:
        return self._device.tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        del spans, layers
        raise InvalidRequest("this window only scatters")


class _Decoding(Scattering):
    """A window whose spans have payloads of one serde as data."""

    def __init__(self, device: DeviceKV, serde: Serde) -> None:
        super().__init__(device)
        self._serde = serde

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        encoded = [EncodedSpan(*span) for span in spans]
        # By its method: to ask for the protocol anew takes 15 us, for each group of layers.
        ability = "scatter_encoded" if layers is None else "scatter_encoded_layers"
        if not hasattr(self._device, ability):
            raise InvalidRequest("the device decodes nothing")
        if layers is None:
            return cast("SupportsEncoded", self._device).scatter_encoded(self._serde, encoded)
        device = cast("SupportsEncodedLayers", self._device)
        return device.scatter_encoded_layers(self._serde, encoded, layers)
