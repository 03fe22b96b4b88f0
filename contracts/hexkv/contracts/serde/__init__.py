"""What every serde promises."""

from __future__ import annotations

from hexkv.contracts.serde._base import Close, SerdeCase
from hexkv.contracts.serde._faithful import Faithful
from hexkv.contracts.serde._hostile import Hostile
from hexkv.contracts.serde._layers import Layers, LayerSerde

__all__ = ["Close", "LayerSerde", "SerdeContract"]


class SerdeContract(Faithful, Hostile, Layers, SerdeCase):
    """Subclass this, give it a ``serde`` fixture, and run pytest.

    A lossy serde also gives ``close``, and one that does not take every dtype ``dtypes``. What
    declares ``per_layer`` has the methods of :class:`LayerSerde`.
    """
