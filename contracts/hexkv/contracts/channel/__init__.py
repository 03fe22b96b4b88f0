"""The contract of channels between peers: over sockets, shared memory, or a double."""

from __future__ import annotations

from hexkv.contracts.channel._base import ChannelCase
from hexkv.contracts.channel._faults import NetworkFaults
from hexkv.contracts.channel._offers import Offers
from hexkv.contracts.channel._reads import Reads
from hexkv.contracts.channel._suspension import Suspension
from hexkv.contracts.kit.whole import Whole

__all__ = ["ChannelContract"]


class ChannelContract(Reads, Offers, NetworkFaults, Suspension, ChannelCase, Whole):
    """Subclass this and give it the fixture ``make``, which opens a channel each time.

    ``memory``, ``recipe``, ``stranger``, ``proxied`` and ``successor`` are optional: see
    :class:`ChannelCase`.
    """
