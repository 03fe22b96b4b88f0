"""The contract of a node's socket, for nodes of any origin, checked from outside.

The kit speaks the protocol itself, byte by byte: see :mod:`hexkv.adapters.node.blackbox._wire`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("_bounds", "_chunks", "_clients", "_wire"))
)

from hexkv.adapters.node.blackbox._bounds import NodeBounds
from hexkv.adapters.node.blackbox._chunks import NodeChunks
from hexkv.adapters.node.blackbox._clients import NodeClients
from hexkv.adapters.node.blackbox._wire import RawNode

__all__ = ["NodeSocketContract", "RawNode"]


class NodeSocketContract(NodeChunks, NodeClients, NodeBounds):
    """Subclass this, give it a ``node`` fixture, and run pytest.

    Or run ``hexkv check --black-box node:///path/of/the.sock``. The node needs a tier in memory and
    room for 16 chunks of 16 tokens. Namespaces are random, so others may use it at the same time.
    """
