"""The contract of windows on a serving engine's KV memory."""

from __future__ import annotations

from hexkv.contracts.device._base import DeviceCase, Holed, RawKV
from hexkv.contracts.device._moves import Moves
from hexkv.contracts.device._requests import Requests

__all__ = ["DeviceContract", "Holed", "RawKV"]


class DeviceContract(Moves, Requests, DeviceCase):
    """Subclass this, give it a ``device`` and a ``raw`` fixture, and run pytest.

    One class for each kind of window: other strides, other block sizes, slots in another
    order. If positions may have no place, give ``holed``, too; if only whole blocks are
    moved, ``unit``. See :class:`RawKV`.
    """
