"""The contract of serdes."""

from __future__ import annotations

from hexkv.contracts.serde._base import Close, SerdeCase
from hexkv.contracts.serde._bounds import Bounds
from hexkv.contracts.serde._faithful import Faithful
from hexkv.contracts.serde._hostile import Hostile
from hexkv.contracts.serde._layers import Layers
from hexkv.contracts.serde._nearness import beyond
from hexkv.ports import LayerSerde

__all__ = ["Close", "LayerSerde", "SerdeContract", "beyond"]


class SerdeContract(Faithful, Bounds, Hostile, Layers, SerdeCase):
    """Subclass this, give it a ``serde`` fixture, and run pytest.

    A lossy serde declares its bound (:class:`hexkv.ports.LossySerde`), or the subclass gives
    ``close``; one that does not take every dtype also gives ``dtypes``. A serde that declares
    ``per_layer`` has the methods of :class:`hexkv.ports.LayerSerde`.
    """
