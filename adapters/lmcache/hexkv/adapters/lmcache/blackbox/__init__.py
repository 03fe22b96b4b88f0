"""The contract of servers of the LM-server wire, of any origin, checked from outside.

The kit speaks the wire itself, byte by byte: a request is nine 32-bit integers and a key of 150
bytes, an answer nine integers. See :mod:`hexkv.adapters.lmcache.blackbox._wire`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("_data", "_neighbours", "_trouble", "_wire"))
)

from hexkv.adapters.lmcache.blackbox._data import Data
from hexkv.adapters.lmcache.blackbox._neighbours import Neighbours
from hexkv.adapters.lmcache.blackbox._trouble import Trouble
from hexkv.adapters.lmcache.blackbox._wire import Address, Wire

__all__ = ["Address", "BlackBoxContract", "Wire"]


class BlackBoxContract(Data, Neighbours, Trouble):
    """Subclass this, give it a ``server`` fixture, and run pytest.

    Or run ``hexkv check --black-box lm://host:port``. The server needs room for 128 MiB. Keys
    are random, so others may use it at the same time; the wire has no deletion, so values are
    overwritten by empty ones afterwards.
    """
