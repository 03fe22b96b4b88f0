"""The greeting of a client: the node's properties, and the descriptor of its memory."""

from __future__ import annotations

import socket
from typing import NamedTuple

from hexkv.adapters.net.unix import receive_descriptors
from hexkv.adapters.node.wire import MAGIC, VERSION, WELCOME
from hexkv.ports import FRAME_VERSION


class Welcome(NamedTuple):
    """The node's properties in its greeting."""

    generation: int
    pool_bytes: int


def greet(sock: socket.socket) -> tuple[Welcome, int]:
    """Read the node's greeting, with the descriptor of its memory, which the caller closes.

    Raises:
        ValueError: it does not let this process in, or speaks another protocol.
        OSError: the connection breaks.
    """
    said, descriptors = b"", list[int]()
    try:
        while len(said) < WELCOME.size:
            part, came = receive_descriptors(sock, WELCOME.size - len(said))
            descriptors += came
            if not part:
                raise ValueError("the node does not let this process in")
            said += part
        magic, version, frames, generation, size, *_ = WELCOME.unpack(said)
        if (magic, version, frames) != (MAGIC, VERSION, FRAME_VERSION) or not size:
            raise ValueError(
                f"the node turns this process away: it speaks version {version} with frames"
                f" {frames}, we speak {VERSION} with {FRAME_VERSION}, or it has too many clients"
            )
        if not descriptors:
            raise ValueError("the node has passed no memory")
        return Welcome(generation, size), descriptors.pop(0)
    finally:
        for descriptor in descriptors:
            socket.close(descriptor)
