"""The channel over TCP: frames follow the messages that announce them."""

from __future__ import annotations

from hexkv.adapters.net.peers.channel import Security
from hexkv.adapters.net.peers.over_tcp import TcpPeers

__all__ = ["Security", "TcpChannel"]


class TcpChannel(TcpPeers):
    """Sends frames to peers over TCP, and receives theirs."""
